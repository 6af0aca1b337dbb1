"""Prompts: rows of JSON lines into tokens, through a chat template or in a base model's styles."""

from real.prompts.prompt import (
    ALL,
    LOOPS,
    LOW_REPEAT,
    ChatTemplate,
    Prompt,
    PromptError,
    PromptFormat,
    draw,
    groups,
    load_chat_template,
    repeated_ngrams,
)
from real.prompts.reading import (
    UNKNOWN_ORIGIN,
    Conversation,
    LeftOut,
    PromptOrigin,
    PromptRow,
    read_prompts,
    read_rows,
)

__all__ = [
    "ALL",
    "LOOPS",
    "LOW_REPEAT",
    "UNKNOWN_ORIGIN",
    "ChatTemplate",
    "Conversation",
    "LeftOut",
    "Prompt",
    "PromptError",
    "PromptFormat",
    "PromptOrigin",
    "PromptRow",
    "draw",
    "groups",
    "load_chat_template",
    "read_prompts",
    "read_rows",
    "repeated_ngrams",
]

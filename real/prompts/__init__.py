"""Prompts: rows of JSON lines into tokens, through a chat template or in a base model's styles."""

from real.prompts.chat_template import ChatTemplate, load_chat_template
from real.prompts.conversation import Conversation
from real.prompts.format import PromptFormat
from real.prompts.left_out import LeftOut
from real.prompts.origin import UNKNOWN_ORIGIN, PromptOrigin
from real.prompts.prompt import Prompt, PromptError
from real.prompts.reading import read_prompts
from real.prompts.repetition import ALL, LOOPS, LOW_REPEAT, groups, repeated_ngrams
from real.prompts.rows import PromptRow, read_rows
from real.prompts.selection import draw

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

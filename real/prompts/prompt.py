"""One prompt: tokens, and where they come from."""

from dataclasses import dataclass


class PromptError(ValueError):
    """The prompts cannot be read."""


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    | field | meaning |
    | --- | --- |
    | id, task, source | of its row; the source with its licence where known |
    | token | token ids |
    | turns | all user turns of its conversation; () for plain `text` |
    """

    id: str
    task: str
    source: str
    token: list[int]
    turns: tuple[str, ...] = ()

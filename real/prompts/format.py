"""How the text of a prompt becomes tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from real.prompts.chat_template import ChatTemplate
from real.prompts.styles import styled


@dataclass(frozen=True)
class PromptFormat:
    """A tokenizer of `tokenizers`, and the chat template of turns; None: a base model's styles.

    A template writes its own special tokens. Other text gets those that the tokenizer puts in front
    of every text, unless it begins with them.
    """

    tokenizer: Any
    template: ChatTemplate | None = None

    def text(self, text: str) -> list[int]:
        """Tokens of plain `text`, used unchanged."""
        plain = self._encode(text)
        whole = self.tokenizer.encode(text, add_special_tokens=True).ids
        begin = whole[: _find(plain, whole)]
        return plain if plain[: len(begin)] == begin else begin + plain

    def turns(self, task: str, turns: Sequence[str], answers: Sequence[str] = ()) -> list[int]:
        """Tokens of a chat up to its next answer: user turns, and answers to all but the last."""
        if self.template is None:
            return self.text(styled(task, turns, answers))
        return self._encode(self.template.render(turns, answers))

    def metadata(self) -> dict[str, str]:
        """Of the chat template; {} without one."""
        return {} if self.template is None else self.template.metadata()

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids


def _find(part: list[int], whole: list[int]) -> int:
    """The first place of `part` in `whole`; 0 where it is not there."""
    places = range(len(whole) - len(part) + 1)
    return next((i for i in places if whole[i : i + len(part)] == part), 0)

"""Prompts of a JSON-lines file as tokens: their rows, turns, origins, and what is left out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from real.prompts.prompt import Prompt, PromptError, PromptFormat
from simspec.output.files import read_at_most


@dataclass(frozen=True)
class LeftOut:
    """How many prompts of a file are left out.

    | field | meaning |
    | --- | --- |
    | read | prompts in the file |
    | empty | prompts without a token |
    | too_long | prompts over `limit` tokens |
    | limit | most tokens of a prompt |
    | longest | tokens of the longest prompt read |
    """

    read: int = 0
    empty: int = 0
    too_long: int = 0
    limit: int = 0
    longest: int = 0

    @property
    def count(self) -> int:
        """Prompts left out for any reason."""
        return self.empty + self.too_long

    def __add__(self, other: "LeftOut") -> "LeftOut":
        return LeftOut(
            self.read + other.read,
            self.empty + other.empty,
            self.too_long + other.too_long,
            max(self.limit, other.limit),
            max(self.longest, other.longest),
        )

    def describe(self) -> str:
        """One line such as `left out 3 of 80 prompts: 3 over 1,952 tokens (longest 2,310)`; ""
        where none is left out."""
        reasons = []
        if self.too_long:
            reasons.append(f"{self.too_long} over {self.limit:,} tokens (longest {self.longest:,})")
        if self.empty:
            reasons.append(f"{self.empty} empty")
        if not reasons:
            return ""
        return f"left out {self.count} of {self.read} prompts: {', '.join(reasons)}"

    def to_json(self) -> dict[str, int]:
        """The fields, for a data card."""
        return asdict(self)


@dataclass(frozen=True)
class PromptOrigin:
    """Origin of prompts, as a recording states it.

    | field | meaning |
    | --- | --- |
    | left_out | prompts that were read and left out; None: not known |
    | chat | `ChatTemplate.metadata`; {}: no template |
    """

    left_out: LeftOut | None = None
    chat: Mapping[str, str] = field(default_factory=dict)


UNKNOWN_ORIGIN = PromptOrigin()


EXPECTED = 'expected JSON lines in UTF-8, such as {"id": "1", "task": "chat", "text": "..."}'
MOST_BYTES = 1 << 30
"""Bytes of a file of prompts."""
SETS = {
    "gsm8k": ("math", "MIT"),
    "humaneval": ("code", "MIT"),
    "mbpp": ("code", "CC-BY-4.0"),
    "mt_bench": ("dialogue", "Apache-2.0"),
    "summarization_qmsum": ("summarization", "MIT"),
    "summarization_mts_dialog": ("summarization", "CC-BY-4.0"),
    "finance_qa_tatqa": ("qa", "CC-BY-4.0"),
    "spider_text_to_sql": ("sql", "CC-BY-SA-4.0"),
}
"""Public evaluation sets by the task name in their rows: (our task, license of the prompts)."""


@dataclass(frozen=True)
class PromptRow:
    """One row of a prompt file: `text` that is used unchanged, or the user turns of a chat."""

    id: str
    task: str
    source: str
    text: str | None = None
    turns: tuple[str, ...] = ()


def read_rows(path: Path) -> list[PromptRow]:
    """Reads `{"id", "task", "text" or "turns", "source"?}` from each line of a JSON-lines file.

    Rows of the public sets in SETS get our task name, and their license is appended to the source.
    PromptError for a file that cannot be read, and for an invalid row.
    """
    try:
        lines = read_at_most(path, MOST_BYTES).decode("utf-8").split("\n")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise PromptError(f"{path} cannot be read as prompts ({reason}): {EXPECTED}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(_row(json.loads(line), number, Path(path).name))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise PromptError(
                f'{path} line {number}: expected a JSON object with "task" and "text" '
                f'(or "turns"), got {line[:60]!r}'
            ) from error
    return rows


def _row(data: Any, number: int, file: str) -> PromptRow:
    source, name = str(data.get("source", file)), str(data["task"])
    task, licence = SETS.get(name.split("/")[0], (name, None))
    source = f"{source.split(':')[0]} ({licence})" if licence else source
    text, turns = (data["text"], ()) if "text" in data else (None, data["turns"])
    if text is None and not (isinstance(turns, list) and turns):
        raise TypeError("turns is no list of strings")
    if not all(isinstance(t, str) for t in ([*turns] if text is None else [text])):
        raise TypeError('"text" is no string')
    "".join([*turns] if text is None else [text]).encode()  # refuses half a surrogate pair
    return PromptRow(str(data.get("id", number)), task, source, text, tuple(turns))


@dataclass(frozen=True)
class Conversation:
    """How later turns become prompts.

    | field | meaning |
    | --- | --- |
    | form | the format of turns and answers |
    | longest | most tokens of a prompt |
    """

    form: PromptFormat
    longest: int

    def answer(self, token: Sequence[int], end_tokens: Sequence[int]) -> str:
        """The text of an answer, without special tokens and the end token."""
        words = list(token)
        if words and words[-1] in end_tokens:
            words.pop()
        return self.form.tokenizer.decode(words, skip_special_tokens=True)

    def follow(self, first: Prompt, answers: Sequence[str]) -> tuple[Prompt | None, LeftOut]:
        """The prompt of the turn after these `answers` of a conversation, and what is left out.

        It is template(turn 1, answer 1, ..., next turn). None where there is no further turn; the
        rest of the conversation is left out where the turn is empty or its prompt is too long.
        """
        turn = len(answers)
        rest = len(first.turns) - turn
        if rest <= 0:
            return None, LeftOut()
        if not first.turns[turn]:
            return None, LeftOut(rest, empty=rest, limit=self.longest)
        token = self.form.turns(first.task, first.turns[: turn + 1], answers)
        if len(token) > self.longest:
            return None, LeftOut(rest, 0, rest, self.longest, len(token))
        read = LeftOut(1, limit=self.longest, longest=len(token))
        return replace(first, id=f"{first.id}#{turn + 1}", token=token), read


def read_prompts(path: Path, form: PromptFormat, longest: int) -> tuple[list[Prompt], LeftOut]:
    """Reads prompts of at most `longest` tokens from a file of `read_rows`: (prompts, left out).

    "text" is used unchanged; of "turns" the first becomes a user message, or the prompt of its
    task's style. PromptError for an invalid row, and if no prompt remains.
    """
    rows = read_rows(path)
    lengths, kept = [], []
    for row in rows:
        token = _tokens(row, form, path)
        lengths.append(len(token))
        if 1 <= len(token) <= longest:
            kept.append(Prompt(row.id, row.task, row.source, token, row.turns))
    if not rows:
        raise PromptError(f"{path} holds no prompt: {EXPECTED}")
    if not kept:
        raise PromptError(
            f"{path} holds no prompt of 1 to {longest} tokens; "
            "raise the limit or bring other prompts"
        )
    too_long, most = sum(n > longest for n in lengths), max(lengths)
    return kept, LeftOut(len(rows), lengths.count(0), too_long, longest, most)


def _tokens(row: PromptRow, form: PromptFormat, path: Path) -> list[int]:
    """[] for a row without text."""
    if row.text is not None:
        return form.text(row.text) if row.text else []
    try:
        return form.turns(row.task, row.turns[:1]) if row.turns[0] else []
    except PromptError as error:
        raise PromptError(f"{path}, prompt {row.id!r}: {error}") from error

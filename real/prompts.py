"""Prompts: rows of JSON lines into tokens, through a chat template or in a base model's styles."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from simspec import Trace
from simspec.output.files import parse_json, read_lines, reraised
from simspec.output.names import one_note


class PromptError(ValueError):
    """The prompts cannot be read."""


@dataclass(frozen=True)
class Prompt:
    """One prompt."""

    # id, task, source: of its row; the source with its licence where known
    id: str
    task: str
    source: str
    token: list[int]  # token ids


def prompts_of(trace: Trace) -> list[list[int]]:
    """The tokens of a recording's prompts."""
    offset = trace.prompt_offset
    return [trace.prompt[a:b].tolist() for a, b in zip(offset, offset[1:])]


def draw(prompts: Sequence[Prompt], per_task: int, seed: int) -> list[Prompt]:
    """Sample up to `per_task` prompts of each task without replacement, in file order."""
    kept: list[int] = []
    for task in dict.fromkeys(p.task for p in prompts):
        of = [i for i, p in enumerate(prompts) if p.task == task]
        pick = np.random.default_rng(seed).permutation(len(of))[:per_task]
        kept += sorted(of[i] for i in pick)
    return [prompts[i] for i in kept]


STYLES = {"math": "Question: {}\nAnswer:", "code": "{}"}
DIALOGUE = "User: {}\n\nAssistant:"
"""The style of tasks that STYLES does not list."""


def styled(task: str, turn: str) -> str:
    """A user turn in its task's style."""
    return STYLES.get(task, DIALOGUE).format(turn)


OWN = "tokenizer"
"""Name of the template that a checkpoint's tokenizer brings."""
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template, rendered in the sandbox of transformers."""

    name: str  # OWN, or the name of a file
    text: str  # the template
    tokenizer: Any  # transformers' tokenizer: it has the special tokens that templates name

    def render(self, turns: Sequence[str], answers: Sequence[str] = ()) -> str:
        """The conversation up to its next answer; PromptError where the template refuses it."""
        chat = messages(turns, answers)
        try:
            return self.tokenizer.apply_chat_template(
                chat, chat_template=self.text, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template may raise anything
            raise PromptError(
                f"chat template {self.name!r} cannot render {len(chat)} messages: "
                f"{one_note(error)[:200]}; use --chat-template none (advise: --raw)"
            ) from error

    def metadata(self) -> dict[str, str]:
        """Name, SHA-256 and an empty system prompt, for the metadata of a recording."""
        digest = hashlib.sha256(self.text.encode()).hexdigest()
        return {"template": self.name, "sha256": digest, "system": ""}


def messages(turns: Sequence[str], answers: Sequence[str] = ()) -> list[dict[str, str]]:
    """Messages of the roles user and assistant, in turns."""
    chat: list[dict[str, str]] = []
    for i, turn in enumerate(turns):
        chat.append({"role": "user", "content": turn})
        if i < len(answers):
            chat.append({"role": "assistant", "content": answers[i]})
    return chat


def load_chat_template(
    path: str | Path, choice: str = "auto", stored: str = ""
) -> ChatTemplate | None:
    """The template of a checkpoint's tokenizer ("auto"), that of a file, or None ("none").

    "auto" gives the one that the model's file stores for a tokenizer without a template, or None.
    PromptError for a file that is no template.
    """
    if choice == "none":
        return None
    if choice != "auto":
        return ChatTemplate(Path(choice).name, _read(Path(choice)), _tokenizer(path))
    template = _own_template(path)
    if template is None and stored:
        return ChatTemplate(OWN, stored, _tokenizer(path))
    return template


def _own_template(path: str | Path) -> ChatTemplate | None:
    files = ("tokenizer_config.json", "chat_template.jinja")
    folder = Path(path)
    if folder.is_dir() and not any((folder / file).exists() for file in files):
        return None
    tokenizer = _tokenizer(path)
    if not tokenizer.chat_template:
        return None
    what, remedy = "has several chat templates and no default", "give one by --chat-template FILE"
    with reraised(PromptError, f"{path} {what}", remedy):
        return ChatTemplate(OWN, tokenizer.get_chat_template(), tokenizer)


def _tokenizer(path: str | Path) -> Any:
    from transformers import AutoTokenizer

    what = f"the tokenizer of {path} cannot be loaded by transformers"
    # transformers raises many types for a damaged tokenizer
    with reraised(PromptError, what, "use --chat-template none (advise: --raw)", Exception):
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)


def _read(file: Path) -> str:
    what, remedy = "cannot be read as a chat template", "expected auto, none or a Jinja file"
    with reraised(PromptError, f"{file} {what}", remedy):
        if file.stat().st_size > MAX_BYTES:
            raise PromptError(f"it is over {MAX_BYTES:,} bytes")
        text = file.read_text(encoding="utf-8")
    if not text.strip():
        raise PromptError(f"{file} is empty; expected a chat template in Jinja")
    return text


@dataclass(frozen=True)
class PromptFormat:
    """A tokenizer of `tokenizers`, and the chat template of turns; None: a base model's styles.

    A template writes its own special tokens. Other text gets those that the tokenizer puts in front
    of every text, unless it begins with them. PromptError for a token that a model of `vocab`
    tokens does not have; None: not known.
    """

    tokenizer: Any
    template: ChatTemplate | None = None
    vocab: int | None = None

    def text(self, text: str) -> list[int]:
        """Tokens of plain `text`, used unchanged."""
        plain = self._encode(text)
        whole = self._encode(text, special=True)
        begin = whole[: _find(plain, whole)]
        return plain if plain[: len(begin)] == begin else begin + plain

    def turns(self, task: str, turns: Sequence[str], answers: Sequence[str] = ()) -> list[int]:
        """Tokens of a chat up to its next answer: user turns, and answers to all but the last;
        without a template of one turn."""
        if self.template is None:
            return self.text(styled(task, *turns))
        return self._encode(self.template.render(turns, answers))

    def metadata(self) -> dict[str, str]:
        """Of the chat template; {} without one."""
        return {} if self.template is None else self.template.metadata()

    def _encode(self, text: str, special: bool = False) -> list[int]:
        token: list[int] = self.tokenizer.encode(text, add_special_tokens=special).ids
        if self.vocab is not None and max(token, default=0) >= self.vocab:
            raise PromptError(
                f"the tokenizer gives a prompt token {max(token)}, the model has {self.vocab}: use "
                "the tokenizer that the model was trained with"
            )
        return token


def _find(part: list[int], whole: list[int]) -> int:
    """The first place of `part` in `whole`; 0 where it is not there."""
    places = range(len(whole) - len(part) + 1)
    return next((i for i in places if whole[i : i + len(part)] == part), 0)


@dataclass(frozen=True)
class LeftOut:
    """How many prompts of a file are left out."""

    read: int = 0  # prompts in the file
    empty: int = 0  # prompts without a token
    too_long: int = 0  # prompts over `limit` tokens
    limit: int = 0  # most tokens of a prompt
    longest: int = 0  # tokens of the longest prompt read

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


@dataclass(frozen=True)
class PromptOrigin:
    """Origin of prompts, as a recording states it."""

    left_out: LeftOut | None = None  # prompts that were read and left out; None: not known
    # `ChatTemplate.metadata`; {}: no template
    chat: Mapping[str, str] = field(default_factory=dict)


EXPECTED = 'expected JSON lines in UTF-8, such as {"id": "1", "task": "chat", "text": "..."}'
MOST_BYTES, MOST_LINE = 1 << 30, 2 << 20
"""Bytes of a file of prompts, and of a line: a tokenizer takes 300 bytes of memory for each."""
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
    PromptError for a file that cannot be read, a line over MOST_LINE bytes, and an invalid row.
    """
    what = f"{path} cannot be read as prompts"
    with reraised(PromptError, what, EXPECTED, (OSError, ValueError)):
        lines = [(i, text.decode()) for i, text in read_lines(path, MOST_LINE, MOST_BYTES)]
    return [_read_row(line.strip(), number, Path(path)) for number, line in lines]


def _read_row(line: str, number: int, path: Path) -> PromptRow:
    what = 'expected a JSON object with "task" and "text" (or "turns")'
    with reraised(PromptError, f"{path} line {number}: {what}, got {line[:60]!r}"):
        return _row(parse_json(line), number, path.name)


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


def read_prompts(
    path: Path, form: PromptFormat, longest: int, asked: bool = False
) -> tuple[list[Prompt], LeftOut]:
    """Reads prompts of at most `longest` tokens from a file of `read_rows`: (prompts, left out).

    "text" is used unchanged, or where it is `asked` of a chat model, a user message; of "turns" the
    first becomes a user message, or the prompt of its task's style. PromptError for an invalid row,
    and if no prompt remains.
    """
    rows = read_rows(path)
    lengths, kept = [], []
    for row in rows:
        if asked and row.text and form.template is not None:
            _check_plain(row.text, form, f"{path}, prompt {row.id!r}")
            row = replace(row, text=None, turns=(row.text,))
        token = _tokens(row, form, path)
        lengths.append(len(token))
        if 1 <= len(token) <= longest:
            kept.append(Prompt(row.id, row.task, row.source, token))
    if not rows:
        raise PromptError(f"{path} holds no prompt: {EXPECTED}")
    if not kept:
        raise PromptError(
            f"{path} holds no prompt of 1 to {longest} tokens; "
            "raise the limit or bring other prompts"
        )
    too_long, most = sum(n > longest for n in lengths), max(lengths)
    return kept, LeftOut(len(rows), lengths.count(0), too_long, longest, most)


def _check_plain(text: str, form: PromptFormat, where: str) -> None:
    """PromptError for a text that a chat template has written: it would get a second one."""
    known = form.tokenizer.get_added_tokens_decoder().values()
    marks = [each.content for each in known if each.special and text.startswith(each.content)]
    if marks:
        raise PromptError(
            f"{where}: its text begins with {marks[0]!r}, as a chat template writes it; give "
            "--raw, which leaves texts as they are"
        )


def _tokens(row: PromptRow, form: PromptFormat, path: Path) -> list[int]:
    """[] for a row without text."""
    if row.text is not None:
        return form.text(row.text) if row.text else []
    with reraised(PromptError, f"{path}, prompt {row.id!r}", raised=PromptError):
        return form.turns(row.task, row.turns[:1]) if row.turns[0] else []

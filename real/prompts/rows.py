"""Rows of a file of prompts, before they become tokens."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real.prompts.prompt import PromptError
from simspec.output.files import read_at_most

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
        raise PromptError(f"{path} cannot be read as prompts: {error}") from error
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

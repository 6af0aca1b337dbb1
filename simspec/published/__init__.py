"""Published accepted lengths and speeds, with their sources.

`SOURCES.md` next to the files names every source and licence.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from simspec.cost.speed_table import SpeedTable, speed_table
from simspec.cost.speed_table import speed_tables as tables_by_batch

FOLDER = Path(__file__).parent
SPEED_FILES = ("speed.json", "specbundle.json")


@dataclass(frozen=True)
class PrintedError:
    """A prediction's error that cannot be computed from the curve.

    | field | meaning |
    | --- | --- |
    | stand_in | 'table', 'iid' or 'teacher-forced', as in `simspec.reports.transport` |
    | K | the draft length that was predicted |
    | error | predicted over measured accepted length, less 1 |
    | measured_at | the draft length that the prediction is from; 0: none |
    """

    stand_in: str
    K: int
    error: float
    measured_at: int = 0


@dataclass(frozen=True)
class LengthCurve:
    """Published accepted lengths of one drafter on one task, bonus included.

    | field | meaning |
    | --- | --- |
    | group | label of the source |
    | texts | {source, target, drafter, task, setting, caution: text} |
    | accepted_length | {K: mean tokens emitted a round} |
    | marginals | {K: (share of rounds whose first i + 1 tokens are accepted,)}, at most K |
    | printed | errors of predictions that cannot be computed from the rest |
    """

    group: str
    texts: Mapping[str, str]
    accepted_length: Mapping[int, float]
    marginals: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    printed: tuple[PrintedError, ...] = ()


@lru_cache(maxsize=1)
def speed_tables() -> dict[str, SpeedTable]:
    """{name: table} of published accepted lengths and speeds."""
    tables = {}
    for name in SPEED_FILES:
        content = (FOLDER / name).read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        for data in json.loads(content):
            tables[data["name"]] = speed_table(data, name, sha256)
    return tables


def published_table(name: str, batch: int | None = None) -> SpeedTable:
    """The speed table of this name; ValueError for an unknown name, or another batch size."""
    tables = speed_tables()
    if name not in tables:
        near = get_close_matches(name, tables, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"{name!r} is no file and no published table: {hint}expected a CSV or JSON file, "
            "or a name that `simspec check --published` prints"
        )
    table = tables[name]
    if batch not in (None, table.batch):
        raise ValueError(f"table {name!r} is of batch size {table.batch}, asked for {batch}")
    return table


@lru_cache(maxsize=1)
def batch_tables() -> dict[str, list[SpeedTable]]:
    """{name: tables of growing batch size} of published speeds of batches."""
    content = (FOLDER / "batches.json").read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    return {
        data["name"]: tables_by_batch(data, "batches.json", sha256) for data in json.loads(content)
    }


@lru_cache(maxsize=1)
def length_curves() -> tuple[LengthCurve, ...]:
    """Published accepted lengths by draft length, and acceptance by position."""
    return tuple(map(_curve, json.loads((FOLDER / "lengths.json").read_text("utf-8"))))


def _curve(data: Mapping[str, Any]) -> LengthCurve:
    texts = {key: value for key, value in data.items() if isinstance(value, str)}
    return LengthCurve(
        texts.pop("group"),
        texts,
        dict(zip(data["K"], data["accepted_length"])),
        {int(K): tuple(values) for K, values in data.get("marginals", {}).items()},
        tuple(PrintedError(**error) for error in data.get("printed", ())),
    )

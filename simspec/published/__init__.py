"""Published draft trees and accepted lengths; `SOURCES.txt` beside the files has their sources."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class PrintedError:
    """A prediction's error that cannot be computed from the curve.

    | field | meaning |
    | --- | --- |
    | stand_in | 'table', 'iid' or 'teacher-forced', see docs/results.md |
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

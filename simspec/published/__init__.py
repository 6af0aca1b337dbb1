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
    """A prediction's error that cannot be computed from the curve."""

    stand_in: str  # 'table', 'iid' or 'teacher-forced', see docs/results.md
    K: int  # the draft length that was predicted
    error: float  # predicted over measured accepted length, less 1
    measured_at: int = 0  # the draft length that the prediction is from; 0: none


@dataclass(frozen=True)
class LengthCurve:
    """Published accepted lengths of one drafter on one task, bonus included."""

    accepted_length: Mapping[int, float]  # {K: mean tokens emitted a round}
    # {K: (share of rounds whose first i + 1 tokens are accepted,)}, at most K
    marginals: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    # errors of predictions that cannot be computed from the rest
    printed: tuple[PrintedError, ...] = ()


@lru_cache(maxsize=1)
def length_curves() -> tuple[LengthCurve, ...]:
    """Published accepted lengths by draft length, and acceptance by position."""
    return tuple(map(_curve, json.loads((FOLDER / "lengths.json").read_text("utf-8"))))


def _curve(data: Mapping[str, Any]) -> LengthCurve:
    return LengthCurve(
        dict(zip(data["K"], data["accepted_length"])),
        {int(K): tuple(values) for K, values in data.get("marginals", {}).items()},
        tuple(PrintedError(**error) for error in data.get("printed", ())),
    )

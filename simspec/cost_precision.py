"""CostPrecision: how certain each part of measured costs is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from simspec.files import check_keys

PARTS = ("draft", "verify", "catch_up", "overhead", "baseline", "feature", "node")
LISTS = ("draft", "verify", "catch_up")


@dataclass(frozen=True)
class CostPrecision:
    """Intervals of the medians that a CostModel holds.

    | field | type | meaning |
    | --- | --- | --- |
    | level | float | of the intervals |
    | half_width | {part: seconds or list} | None: not measured, or under 6 rounds |
    | samples | {part: count or list} | timed rounds; 0: filled, not measured |
    | seconds | float | the measurement took |
    | after_draft | float | seconds that a draft adds to the pass behind it |
    | warnings | (str,) | one line each: cells that are wide, drift, a busy machine |

    after_draft is part of every draft[j], j >= 1. Parts are those of PARTS; draft, verify and
    catch_up have lists as long as the cost's.
    ValueError for anything else.
    """

    level: float
    half_width: Mapping[str, Any]
    samples: Mapping[str, Any]
    seconds: float = 0.0
    after_draft: float = 0.0
    warnings: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for name in ("level", "seconds", "after_draft"):
            value = getattr(self, name)
            if not _number(value) or not isfinite(value):
                raise ValueError(f"precision: {name} is {value!r}, expected a finite number")
        texts = isinstance(self.warnings, (list, tuple))
        if not texts or not all(isinstance(text, str) for text in self.warnings):
            raise ValueError(f"precision: warnings are {self.warnings!r}, expected a list of texts")
        object.__setattr__(self, "warnings", tuple(self.warnings))
        for name in ("half_width", "samples"):
            values = getattr(self, name)
            if not isinstance(values, Mapping) or set(values) != set(PARTS):
                raise ValueError(f"precision: {name} has other parts than {', '.join(PARTS)}")
            for part, value in values.items():
                items = value if part in LISTS else [value]
                if not isinstance(items, list) or not all(_valid(name, item) for item in items):
                    raise ValueError(
                        f"precision: {name} of {part} is {value!r}, expected numbers >= 0"
                    )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and texts, as in the file."""
        return {
            "level": self.level,
            "half_width": dict(self.half_width),
            "samples": dict(self.samples),
            "seconds": self.seconds,
            "after_draft": self.after_draft,
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_dict(cls, data: Any) -> "CostPrecision":
        """The inverse of `to_dict`; ValueError for missing or unknown keys and other values."""
        names = ("level", "half_width", "samples", "seconds", "after_draft", "warnings")
        check_keys(data, names)
        return cls(**data)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _valid(name: str, value: Any) -> bool:
    if name == "samples":
        return type(value) is int and value >= 0
    return value is None or (_number(value) and isfinite(value) and value >= 0)

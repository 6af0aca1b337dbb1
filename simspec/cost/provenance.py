"""CostOrigin and CostPrecision: where costs were measured, and how certain each part is."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from math import isfinite
from typing import Any

from simspec.output.files import check_keys

IDENTITY = ("device", "threads", "dtype")
"""What two costs have to share before their seconds can be compared."""

_MAPS = ("engines", "versions", "products")


@dataclass(frozen=True)
class CostOrigin:
    """Device, engines and versions of a measurement of costs; an empty value, or 0, is unknown.

    | field | type | meaning |
    | --- | --- | --- |
    | device | str | the GPU, or the processor |
    | threads | int >= 0 | of torch on the host |
    | dtype | str | of weights and caches |
    | engines | {model: engine} | engines that the target and the drafter ran on |
    | versions | {library: version} | of Python and of the libraries that decide latency |
    | created | str | UTC, ISO 8601 |
    | sitting | str | equal in all files that one measurement wrote |
    | products | {shape: text} | how each number of rows was multiplied; files of today have none |

    ValueError for values of another type.
    """

    device: str = ""
    threads: int = 0
    dtype: str = ""
    engines: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    sitting: str = ""
    products: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "threads":
                valid, expected = type(value) is int and value >= 0, "a whole number >= 0"
            elif item.name in _MAPS:
                valid = isinstance(value, Mapping) and all(
                    isinstance(text, str) for pair in value.items() for text in pair
                )
                expected = "an object of texts"
            else:
                valid, expected = isinstance(value, str), "text"
            if not valid:
                raise ValueError(f"origin: {item.name} is {value!r}, expected {expected}")

    def differences(self, other: "CostOrigin") -> tuple[str, ...]:
        """Which of IDENTITY both origins know, and know differently."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in IDENTITY)
        return tuple(name for name, ours, theirs in pairs if ours and theirs and ours != theirs)

    @property
    def known(self) -> bool:
        """Whether all of IDENTITY is known."""
        return all(getattr(self, name) for name in IDENTITY)

    def to_dict(self) -> dict[str, Any]:
        """Plain texts and numbers, as in the file."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values = {name: dict(v) if name in _MAPS else v for name, v in values.items()}
        return values if self.products else {k: v for k, v in values.items() if k != "products"}

    @classmethod
    def from_dict(cls, data: Any) -> "CostOrigin":
        """The inverse of `to_dict`; ValueError for missing or unknown keys and for other values."""
        names = (item.name for item in fields(cls))
        check_keys(data, (name for name in names if name != "products" or name in data))
        return cls(**data)


def read_origin(data: Any) -> tuple[Any, CostOrigin | None]:
    """(the JSON value of a cost file without its origin, the origin or None).

    Older files hold "engines" alone. ValueError for an invalid origin.
    """
    if not isinstance(data, dict):
        return data, None
    rest = {key: value for key, value in data.items() if key not in ("engines", "origin")}
    if "origin" in data:
        if "engines" in data:
            raise ValueError("holds engines outside its origin, expected them inside it")
        return rest, CostOrigin.from_dict(data["origin"])
    if "engines" in data:
        return rest, CostOrigin(engines=data["engines"])
    return rest, None


PARTS = ("draft", "verify", "catch_up", "overhead", "baseline", "feature", "node")
LISTS = ("draft", "verify", "catch_up")
REPLICATED = (*LISTS, "overhead", "feature", "node")
MOST_REPLICATES = 1000
_OPTIONAL = ("replicates", "blocks", "disturbed")
"""Keys that a file leaves out where they say nothing."""


@dataclass(frozen=True)
class CostPrecision:
    """Intervals of the medians that a CostModel holds.

    | field | type | meaning |
    | --- | --- | --- |
    | level | float | of the intervals |
    | half_width | {part: seconds or list} | None: not measured, or under 6 rounds |
    | samples | {part: count or list} | timed rounds; 0: filled, not measured |
    | seconds | float | the measurement took |
    | after_draft | float | seconds that a draft adds to the pass after it |
    | warnings | (str,) | one line each: cells that are wide, drift, a busy machine |
    | replicates | {part: list [R]} | bootstrap replicates, in plain steps of the replicate |
    | blocks | int | timing blocks of the sitting |
    | disturbed | int | of these, left out as disturbed |

    after_draft is part of every draft[j], j >= 1. Parts are those of PARTS; draft, verify and
    catch_up have lists as long as the cost's. Replicates are empty, or R = 2 .. 1000 of each of
    REPLICATED, and of predictor where the cost has one; entry r of all parts, and of all files of
    a sitting, is of the same resample. A replicate of a list is a list that long.
    ValueError for anything else.
    """

    level: float
    half_width: Mapping[str, Any]
    samples: Mapping[str, Any]
    seconds: float = 0.0
    after_draft: float = 0.0
    warnings: tuple[str, ...] = field(default=())
    replicates: Mapping[str, Any] = field(default_factory=dict)
    blocks: int = 0
    disturbed: int = 0

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
        _check_replicates(self.replicates)
        counts = self.blocks, self.disturbed
        if not all(type(n) is int for n in counts) or not 0 <= self.disturbed <= self.blocks:
            raise ValueError(
                f"precision: {self.disturbed!r} of {self.blocks!r} blocks are disturbed, expected "
                "whole numbers >= 0, and no more than there are"
            )

    def misfit(self, sizes: Mapping[str, int], predictor: bool) -> str:
        """Why this is not the precision of costs with lists of these sizes; '' where it is."""
        replicates = {part: values[0] for part, values in self.replicates.items() if part in LISTS}
        for part, size in sizes.items():
            for held in (self.half_width[part], self.samples[part], replicates.get(part)):
                if held is not None and len(held) != size:
                    return f"precision of {part} has {len(held)} entries, expected {size}: drop it"
        if self.replicates and ("predictor" in self.replicates) != predictor:
            return "replicates of predictor and its cost are not both there: drop the replicates"
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and texts, as in the file."""
        optional = {name: getattr(self, name) for name in _OPTIONAL}
        return {
            "level": self.level,
            "half_width": dict(self.half_width),
            "samples": dict(self.samples),
            "seconds": self.seconds,
            "after_draft": self.after_draft,
            "warnings": list(self.warnings),
        } | {name: value for name, value in optional.items() if value}

    @classmethod
    def from_dict(cls, data: Any) -> "CostPrecision":
        """The inverse of `to_dict`; ValueError for missing or unknown keys and other values."""
        names = ("level", "half_width", "samples", "seconds", "after_draft", "warnings")
        held = data if isinstance(data, dict) else {}  # which check_keys refuses
        check_keys(data, (*names, *(name for name in _OPTIONAL if name in held)))
        return cls(**data)


def _check_replicates(replicates: Any) -> None:
    """ValueError for other parts, for replicates of unequal number or size, and for no seconds."""
    parts = set(replicates) if isinstance(replicates, Mapping) else {None}
    if not parts:
        return
    if parts - {"predictor"} != set(REPLICATED):
        raise ValueError(f"precision: replicates have other parts than {', '.join(REPLICATED)}")
    count = len(replicates["overhead"]) if isinstance(replicates["overhead"], list) else 0
    for part, values in replicates.items():
        if not isinstance(values, list) or len(values) != count:
            raise ValueError(f"precision: replicates of {part} are no list of {count} replicates")
        if part in LISTS:
            size = len(values[0]) if values and isinstance(values[0], list) else 0
            if not size or not all(isinstance(row, list) and len(row) == size for row in values):
                raise ValueError(
                    f"precision: replicates of {part} are no lists of one length, that of the cost"
                )
            if part != "verify" and any(row[0] != 0 for row in values):
                raise ValueError(f"precision: replicates of {part} begin with work, expected 0")
        numbers = chain.from_iterable(values) if part in LISTS else values
        if not all(_number(value) and isfinite(value) and value >= 0 for value in numbers):
            raise ValueError(f"precision: replicates of {part} hold other values than numbers >= 0")
    if not 2 <= count <= MOST_REPLICATES:
        raise ValueError(f"precision: {count} replicates, expected 2 to {MOST_REPLICATES}")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _valid(name: str, value: Any) -> bool:
    if name == "samples":
        return type(value) is int and value >= 0
    return value is None or (_number(value) and isfinite(value) and value >= 0)

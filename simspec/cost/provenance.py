"""CostOrigin and CostPrecision: where costs were measured, and how certain each part is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import float_info
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from msgspec import Meta

from simspec.output.files import check_keys, convert_fields, field_types

Finite = Annotated[float, Meta(ge=0, le=float_info.max)]
Count = Annotated[int, Meta(ge=0)]


IDENTITY = ("device", "threads", "dtype")
"""What two costs have to share before their seconds can be compared."""


class Part:
    """A part of a cost file: a frozen dataclass whose fields are checked, and are the keys."""

    optional: ClassVar[tuple[str, ...]]
    """Keys that a file leaves out where they say nothing."""

    def __post_init__(self) -> None:
        convert_fields(self, type(self).__name__.removeprefix("Cost").lower())

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and texts, as in the file."""
        values = {name: getattr(self, name) for name in field_types(type(self))}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value or name not in self.optional
        }

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The inverse of `to_dict`; ValueError for missing or unknown keys and other values."""
        held = data if isinstance(data, dict) else {}  # anything else check_keys refuses
        check_keys(data, (k for k in field_types(cls) if k in held or k not in cls.optional))
        return cls(**data)


@dataclass(frozen=True)
class CostOrigin(Part):
    """Device, engines and versions of a measurement of costs; an empty value, or 0, is unknown.

    ValueError for values of another type.
    """

    # device, threads, dtype: GPU or processor; of torch on the host; of weights and caches
    device: str = ""
    threads: Count = 0
    dtype: str = ""
    # {model: engine} that the target and the drafter ran on
    engines: Mapping[str, str] = field(default_factory=dict)
    # {library: version} of Python and of the libraries that decide latency
    versions: Mapping[str, str] = field(default_factory=dict)
    # created, sitting: UTC, ISO 8601; equal in all files that one measurement wrote
    created: str = ""
    sitting: str = ""
    # {shape: text}, how each number of rows was multiplied; files of today have none
    products: Mapping[str, str] = field(default_factory=dict)
    # {name: text} of the engine and of the model's shape
    settings: Mapping[str, str] = field(default_factory=dict)
    optional = ("products", "settings")

    def differences(self, other: "CostOrigin") -> tuple[str, ...]:
        """Which of IDENTITY both origins know, and know differently."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in IDENTITY)
        return tuple(name for name, ours, theirs in pairs if ours and theirs and ours != theirs)

    @property
    def runner(self) -> str:
        """vLLM's model runner, V1 or V2; "" of other engines. `engine measure` runs V1, which its
        older files do not say."""
        target = self.engines.get("target", "")
        return "V2" if ", V2 runner" in target else "V1" if target.startswith("vllm ") else ""

    @property
    def known(self) -> bool:
        """Whether all of IDENTITY is known."""
        return all(getattr(self, name) for name in IDENTITY)


def read_origin(data: Any) -> tuple[Any, CostOrigin | None]:
    """(the JSON value of a cost file without its origin, the origin or None); ValueError for an
    invalid one."""
    if not isinstance(data, dict) or "origin" not in data:
        return data, None
    rest = {key: value for key, value in data.items() if key != "origin"}
    return rest, CostOrigin.from_dict(data["origin"])


PARTS = ("draft", "verify", "catch_up", "overhead", "baseline", "feature", "node")
LISTS = ("draft", "verify", "catch_up")
REPLICATED = (*LISTS, "overhead", "feature", "node")
MOST_REPLICATES = 1000


@dataclass(frozen=True)
class CostPrecision(Part):
    """Intervals of the medians that a CostModel holds.

    Parts are those of PARTS; draft, verify and catch_up have lists as long as the cost's.
    Replicates are empty, or R = 2 .. 1000 of each of REPLICATED, and of predictor where the cost
    has one; entry r of all parts, and of all files of a sitting, is of the same resample. A
    replicate of a list is a list that long. ValueError for anything else.
    """

    level: Finite  # of the intervals
    # {part: seconds or list}; None: not measured, or under 4 timing blocks
    half_width: Mapping[str, Finite | None | list[Finite | None]]
    # {part: count or list} of timed blocks; 0: filled, not measured
    samples: Mapping[str, Count | list[Count]]
    seconds: Finite = 0.0  # the measurement took
    # seconds that a draft adds to the pass after it, part of every draft[j], j >= 1
    after_draft: Finite = 0.0
    # one line each: drift, a busy machine, a wide pass that is faster
    warnings: tuple[str, ...] = ()
    # {part: list [R]} of bootstrap replicates, in plain steps of the replicate
    replicates: Mapping[str, list[Finite | list[Finite]]] = field(default_factory=dict)
    # blocks, disturbed: timing blocks of the sitting, and of these left out as disturbed
    blocks: Count = 0
    disturbed: Count = 0
    optional = ("replicates", "blocks", "disturbed")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("half_width", "samples"):
            values = getattr(self, name)
            lists = {part for part, value in values.items() if isinstance(value, list)}
            if set(values) != set(PARTS) or lists != set(LISTS):
                raise ValueError(
                    f"precision: {name} has other parts than {', '.join(PARTS)}, "
                    f"or other lists than {', '.join(LISTS)}"
                )
        if self.replicates and set(self.replicates) - {"predictor"} != set(REPLICATED):
            raise ValueError(f"precision: replicates have other parts than {', '.join(REPLICATED)}")
        counts = {len(values) for values in self.replicates.values()}
        if counts and (len(counts) > 1 or not 2 <= max(counts) <= MOST_REPLICATES):
            raise ValueError(
                f"precision: {sorted(counts)} replicates, expected one number, "
                f"2 to {MOST_REPLICATES}"
            )
        if self.disturbed > self.blocks:
            raise ValueError(
                f"precision: {self.disturbed} of {self.blocks} blocks are disturbed, expected no "
                "more than there are"
            )

    def misfit(self, sizes: Mapping[str, int], predictor: bool) -> str:
        """Why this is not the precision of costs with lists of these sizes; '' where it is."""
        for part, size in sizes.items():
            first: list[Any] = self.replicates.get(part, [])[:1]
            for held in (self.half_width[part], self.samples[part], *first):
                if np.shape(held) != (size,):
                    return f"precision of {part} has other than {size} entries: drop it"
        if self.replicates and ("predictor" in self.replicates) != predictor:
            return "replicates of predictor and its cost are not both there: drop the replicates"
        return ""

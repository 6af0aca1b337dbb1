"""Latency of passes by width, batch and context, and the limits of the device."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from real.drafters import drafter_shapes
from real.measure.device_limits import DeviceSpeeds, Quantiles
from real.measure.settings import ascending
from simspec.cost.roofline import pass_bytes, pass_flops
from simspec.cost.shapes import ModelShape
from simspec.output.files import check_keys, read_json, write_json

TARGET = "target"
SECONDS = ("median_s", "p10_s", "p90_s", "distance")

Key = tuple[str, int, int, int]
"""(part, batch, context, width) of a pass."""


def minimum_latency(
    shape: ModelShape,
    speeds: DeviceSpeeds,
    rows: int,
    batch: int,
    context: int,
    layers: int | None = None,
    extra_weights: int = 0,
) -> float:
    """Least seconds of a pass: max(bytes / bandwidth, FLOP / rate), as `roofline.pass_seconds`.

    Bytes are those of `roofline.pass_bytes`, at median measured speeds. `extra_weights` are read
    in addition, and multiply each row.
    """
    moved = pass_bytes(shape, rows, batch, context, layers) + extra_weights * shape.weight_bytes
    flops = pass_flops(shape, rows, batch, context, 1, layers) + 2 * extra_weights * batch * rows
    return max(moved / speeds.bandwidth.median, flops / speeds.rate.median)


@dataclass(frozen=True)
class PassLatency:
    """Latency of one pass.

    | field | unit | meaning |
    | --- | --- | --- |
    | part | | "target", or the drafter whose step it is |
    | batch, context | | sequences, and rows cached before the pass in each |
    | width | | rows that each sequence passes |
    | median_s, p10_s, p90_s | s | of the repeats; None where it did not fit the device |
    | floor_s | s | `minimum_latency` |
    | distance | | median_s / floor_s |

    ValueError for sizes below 1 (context below 0), and for times not positive or out of order.
    """

    part: str
    batch: int
    context: int
    width: int
    median_s: float | None
    p10_s: float | None
    p90_s: float | None
    floor_s: float
    distance: float | None

    def __post_init__(self) -> None:
        where = (
            f"cell {self.part!r} batch {self.batch!r} context {self.context!r} width {self.width!r}"
        )
        if not isinstance(self.part, str):
            raise ValueError(f"{where}: part is no text, expected {TARGET!r} or a drafter")
        for name, least in (("batch", 1), ("context", 0), ("width", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{where}: {name} is {value!r}, expected an integer >= {least}")
        missing = all(getattr(self, name) is None for name in SECONDS)
        for name in ("floor_s", *(() if missing else SECONDS)):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ValueError(
                    f"{where}: {name} is {value!r}, expected a positive number"
                    + " or null in all four" * (name != "floor_s")
                )
        if missing:
            return
        if not self.p10_s <= self.median_s <= self.p90_s:  # type: ignore[operator]
            raise ValueError(
                f"{where}: p10 {self.p10_s}, median {self.median_s}, p90 {self.p90_s}, "
                "expected growing seconds"
            )
        ratio = self.median_s / self.floor_s  # type: ignore[operator]
        if not math.isclose(self.distance, ratio, rel_tol=1e-9):  # type: ignore[arg-type]
            raise ValueError(f"{where}: distance {self.distance} is not median / floor, {ratio}")

    @property
    def key(self) -> Key:
        """Key of the cell, unique in one grid."""
        return self.part, self.batch, self.context, self.width

    @property
    def fits(self) -> bool:
        """Whether it fitted the device and was measured."""
        return self.median_s is not None


def pass_latency(key: Key, minimum: float, measured: Quantiles | None) -> PassLatency:
    """A PassLatency of measured seconds; None where the pass did not fit."""
    if measured is None:
        return PassLatency(*key, None, None, None, minimum, None)
    distance = measured.median / minimum
    return PassLatency(*key, measured.median, measured.p10, measured.p90, minimum, distance)


WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 17, 24, 32)
BATCHES = (1, 4, 16, 64)
CONTEXTS = (128, 1024, 4096)


@dataclass(frozen=True)
class GridAxes:
    """Sizes of the target's passes; all combinations are measured.

    | field | meaning |
    | --- | --- |
    | widths | rows that each sequence passes |
    | batches | sequences |
    | contexts | rows cached before the pass, in each sequence |

    Each size is kept once, ascending. ValueError for none, or one below 1 (contexts: below 0).
    """

    widths: tuple[int, ...] = WIDTHS
    batches: tuple[int, ...] = BATCHES
    contexts: tuple[int, ...] = CONTEXTS

    def __post_init__(self) -> None:
        for name, least in (("widths", 1), ("batches", 1), ("contexts", 0)):
            object.__setattr__(self, name, ascending(name, getattr(self, name), least))


@dataclass(frozen=True)
class GridSettings:
    """How passes are run and timed.

    | field | meaning |
    | --- | --- |
    | dtype, device | of the models |
    | repeats | of every pass |
    | graphs | passes are captured and replayed (`real.model.cuda_graphs`), else run eagerly |
    | compiled | layers are compiled before the capture; None: on CUDA |
    | mode | torch.compile's; None: its default |
    | drafters | `real.drafters.random_drafter` specifications whose step is timed too |
    | seed | of weights, inputs and the order of passes |

    ValueError for no repeat, and for compiled layers without captures on CUDA.
    """

    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"
    repeats: int = 20
    graphs: bool = True
    compiled: bool | None = None
    mode: str | None = None
    drafters: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"repeats is {self.repeats}, expected at least 1")
        captured_on_cuda = self.graphs and torch.device(self.device).type == "cuda"
        if self.compiled and not captured_on_cuda:
            raise ValueError(
                "layers are compiled for captured passes on a GPU only: "
                "take graphs on cuda, or leave compiled out"
            )
        if self.compiled is None:
            object.__setattr__(self, "compiled", captured_on_cuda)
        object.__setattr__(self, "drafters", tuple(dict.fromkeys(self.drafters)))

    def drafter_shapes(self, shape: ModelShape) -> list[ModelShape]:
        """Shapes that drafters add to a target; ValueError for a drafter without a pass to time."""
        if any(drafter.partition(":")[0] == "prompt_lookup" for drafter in self.drafters):
            raise ValueError(
                "drafter 'prompt_lookup' has no pass to time; "
                "expected early_exit, model:SHAPE, eagle or medusa"
            )
        return [s for drafter in self.drafters for s in drafter_shapes(drafter, shape)]


SETTINGS = ("device", "dtype", "shape", "graphed", "fused", "repeats")


@dataclass(frozen=True)
class LatencyGrid:
    """Latency of every width at every batch and context, of one shape on one device; not smoothed.

    | field | meaning |
    | --- | --- |
    | device, dtype | of the models |
    | shape | of the target; weights and tokens were random |
    | graphed | whether passes were captured and replayed (`real.model.cuda_graphs`) |
    | fused | whether layers were compiled before the capture |
    | repeats | of every pass |
    | speeds | limits of the device in the same run |
    | cells | in the order measured |

    ValueError where two cells have one key.
    """

    device: str
    dtype: str
    shape: ModelShape
    graphed: bool
    fused: bool
    repeats: int
    speeds: DeviceSpeeds
    cells: tuple[PassLatency, ...] = ()

    def __post_init__(self) -> None:
        keys = [c.key for c in self.cells]
        if len(set(keys)) < len(keys):
            twice = next(key for i, key in enumerate(keys) if key in keys[:i])
            raise ValueError(
                f"cell {twice} is there twice, expected one of each part, batch, context and width"
            )

    @property
    def settings(self) -> dict:
        """Settings that must agree for cells to belong to one grid."""
        return {name: getattr(self, name) for name in SETTINGS}

    def axis(self, name: str, part: str = TARGET) -> list[int]:
        """The sizes of "batch", "context" or "width" that a part's cells have, ascending."""
        return sorted({getattr(c, name) for c in self.cells if c.part == part})

    def by_width(self, batch: int, context: int, part: str = TARGET) -> list[PassLatency]:
        """A part's cells at one batch and context, by width."""
        cells = (c for c in self.cells if c.key[:3] == (part, batch, context))
        return sorted(cells, key=lambda c: c.width)

    def extended(self, cells: Iterable[PassLatency]) -> "LatencyGrid":
        """The grid with more cells after its own."""
        return replace(self, cells=(*self.cells, *cells))

    def to_dict(self) -> dict:
        """Plain lists and numbers, as in the file."""
        return asdict(self) | {"cells": [asdict(c) for c in self.cells]}

    def to_json(self, path: Path) -> None:
        """Writes one JSON object, atomically."""
        write_json(path, self.to_dict())

    @classmethod
    def from_dict(cls, data: Any) -> "LatencyGrid":
        """The inverse of `to_dict`; ValueError for a missing or unknown key or a bad value."""
        check_keys(data, (f.name for f in fields(cls)))
        _check_types(data)
        check_keys(data["shape"], (f.name for f in fields(ModelShape)))
        if type(data["shape"]["name"]) is not str or type(data["shape"]["tied"]) is not bool:
            raise ValueError("shape: name must be text and tied true or false")
        for row in data["cells"]:
            check_keys(row, (f.name for f in fields(PassLatency)))
        parsed = {
            "shape": ModelShape(**data["shape"]),
            "speeds": _speeds(data["speeds"]),
            "cells": tuple(PassLatency(**c) for c in data["cells"]),
        }
        return cls(**data | parsed)

    @classmethod
    def from_json(cls, path: Path) -> "LatencyGrid":
        """Reads what `to_json` wrote; ValueError, one line with the path, for anything else."""
        return read_json(path, cls.from_dict, "latency grid")


def _check_types(data: dict) -> None:
    types = {
        "device": str,
        "dtype": str,
        "graphed": bool,
        "fused": bool,
        "repeats": int,
        "cells": list,
    }
    for name, kind in types.items():
        if type(data[name]) is not kind or name == "repeats" and data[name] < 1:
            expected = "text" if kind is str else f"a {kind.__name__}"
            raise ValueError(f"{name} is {str(data[name])[:80]!r}, expected {expected}")


def _speeds(data: Any) -> DeviceSpeeds:
    check_keys(data, (f.name for f in fields(DeviceSpeeds)))
    for name, value in data.items():
        check_keys(value, (f.name for f in fields(Quantiles)))
        if not all(type(x) in (int, float) and 0 < x < math.inf for x in value.values()):
            raise ValueError(f"{name} is {value}, expected positive numbers")
    return DeviceSpeeds(**{name: Quantiles(**value) for name, value in data.items()})

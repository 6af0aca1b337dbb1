"""Latency of passes by width, batch and context, in a JSON file that can be extended."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from real.measure.device_limits import DeviceSpeeds
from real.measure.pass_latency import TARGET, PassLatency
from real.measure.timer import Quantiles
from simspec.cost.shapes import ModelShape
from simspec.output.files import check_keys, read_json, write_json

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
        """What must agree for cells to belong to one grid."""
        return {name: getattr(self, name) for name in SETTINGS}

    def axis(self, name: str, part: str = TARGET) -> list[int]:
        """The sizes of "batch", "context" or "width" that a part's cells have, ascending."""
        return sorted({getattr(c, name) for c in self.cells if c.part == part})

    def by_width(self, batch: int, context: int, part: str = TARGET) -> list[PassLatency]:
        """A part's cells at one batch and context, by width."""
        cells = (c for c in self.cells if c.key[:3] == (part, batch, context))
        return sorted(cells, key=lambda c: c.width)

    def extended(self, cells: Iterable[PassLatency]) -> "LatencyGrid":
        """The grid with more cells behind its own."""
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

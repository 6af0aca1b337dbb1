"""Costs of passes by width, batch and context, as measured, beside the least that the device's memory and arithmetic allow."""

import math
from dataclasses import asdict, dataclass, fields, replace

import numpy as np

from real.measure.device_limits import Speeds
from real.measure.timer import Spread
from simspec import CostModel
from simspec.cost_table import CostTable
from simspec.files import check_keys, read_json, write_json
from simspec.model_shape import ModelShape
from simspec.pass_cost import pass_bytes, pass_flops

TARGET = "target"
SECONDS = ("median_s", "p10_s", "p90_s", "distance")


def floor(
    shape: ModelShape,
    speeds: Speeds,
    rows: int,
    batch: int,
    context: int,
    layers: int | None = None,
    more: int = 0,
) -> float:
    """Seconds that a pass takes at least: max(bytes / bandwidth, operations / rate), as `roofline.pass_seconds` without tiles.

    Bytes are those that a pass reads and writes (`roofline.pass_bytes`: the weights of layers and head once, the cached rows), at the
    measured median speeds; `more` weights are read beside them, and each row is multiplied by them.
    """
    moved = pass_bytes(shape, rows, batch, context, layers) + more * shape.weight_bytes
    computed = pass_flops(shape, rows, batch, context, 1, layers) + 2 * more * batch * rows
    return max(moved / speeds.bandwidth.median, computed / speeds.rate.median)


@dataclass(frozen=True)
class Cell:
    """One pass.

    | field | unit | meaning |
    | --- | --- | --- |
    | part | | "target", or the drafter whose step it is |
    | batch, context | | sequences, and rows cached before the pass in each |
    | width | | rows that each sequence passes |
    | median_s, p10_s, p90_s | s | of the repeats; None where it did not fit the device |
    | floor_s | s | `floor` |
    | distance | | median_s / floor_s |

    ValueError for sizes below 1 (context below 0), for times that are not positive, or out of order.
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

    def __post_init__(self):
        where = (
            f"cell {self.part!r} batch {self.batch!r} context {self.context!r} width {self.width!r}"
        )
        if not isinstance(self.part, str):
            raise ValueError(f"{where}: part is no text, expected {TARGET!r} or a drafter")
        for name, least in (("batch", 1), ("context", 0), ("width", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{where}: {name} is {value!r}, expected an integer >= {least}")
        none = [getattr(self, name) is None for name in SECONDS]
        for name in ("floor_s", *(() if all(none) else SECONDS)):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ValueError(
                    f"{where}: {name} is {value!r}, expected a positive number"
                    + " or null in all four" * (name != "floor_s")
                )
        if self.fits and not self.p10_s <= self.median_s <= self.p90_s:
            raise ValueError(
                f"{where}: p10 {self.p10_s}, median {self.median_s}, p90 {self.p90_s}, expected growing seconds"
            )
        if self.fits and not math.isclose(
            self.distance, self.median_s / self.floor_s, rel_tol=1e-9
        ):
            raise ValueError(
                f"{where}: distance {self.distance} is not median / floor, {self.median_s / self.floor_s}"
            )

    @property
    def key(self) -> tuple:
        """What tells cells of one Ladder apart."""
        return self.part, self.batch, self.context, self.width

    @property
    def fits(self) -> bool:
        """Whether it was measured."""
        return self.median_s is not None


def cell(key: tuple, least: float, found: Spread | None) -> Cell:
    """A Cell from its key, its floor and what was measured (None: it did not fit)."""
    if found is None:
        return Cell(*key, None, None, None, least, None)
    return Cell(*key, found.median, found.p10, found.p90, least, found.median / least)


@dataclass(frozen=True)
class Ladder:
    """Every width at every batch and context, of one shape on one device; nothing is smoothed.

    | field | meaning |
    | --- | --- |
    | device, dtype | where, and in what |
    | shape | of the target; its weights and text were random |
    | graphed, fused | whether passes were captured and replayed (`real.model.cuda_graphs`: on a CPU a tape); whether layers were compiled before |
    | repeats | of every cell |
    | speeds | of the device in the same run |
    | cells | in the order measured |

    ValueError where two cells have one key.
    """

    device: str
    dtype: str
    shape: ModelShape
    graphed: bool
    fused: bool
    repeats: int
    speeds: Speeds
    cells: tuple[Cell, ...] = ()

    def __post_init__(self):
        keys = [c.key for c in self.cells]
        if len(set(keys)) < len(keys):
            twice = next(key for i, key in enumerate(keys) if key in keys[:i])
            raise ValueError(
                f"cell {twice} is there twice, expected one of each part, batch, context and width"
            )

    @property
    def settings(self) -> dict:
        """What must agree for cells to stand in one Ladder."""
        return {
            name: getattr(self, name)
            for name in ("device", "dtype", "shape", "graphed", "fused", "repeats")
        }

    def axis(self, name: str, part: str = TARGET) -> list[int]:
        """The sizes of "batch", "context" or "width" that a part's cells have, growing."""
        return sorted({getattr(c, name) for c in self.cells if c.part == part})

    def line(self, batch: int, context: int, part: str = TARGET) -> list[Cell]:
        """A part's cells at one batch and context, by width."""
        return sorted(
            (c for c in self.cells if c.key[:3] == (part, batch, context)), key=lambda c: c.width
        )

    def cost(self, batch: int, context: int, step: "str | float") -> CostModel:
        """A CostModel of the whole batch: verify[j] is the median of width j + 1, between two measured widths on the line.

        draft[j] = j step, a measured drafter's median for one row or seconds given; baseline is width 1; overhead and catch_up are 0:
        what a loop does between passes is not in these times, nor that an exit's verification skips the layers it has passed.
        ValueError where one of these cells was not measured, or there are fewer than 2 widths, or the first is not 1.
        """
        cells = self.line(batch, context)
        if len(cells) < 2 or cells[0].width != 1 or not all(c.fits for c in cells):
            known = [c.width for c in cells if c.fits]
            raise ValueError(
                f"batch {batch}, context {context}: widths measured are {known}, expected all asked for, 1 and a wider one"
            )
        if isinstance(step, str):
            found = self.line(batch, context, step)
            if not found or not found[0].fits:
                raise ValueError(
                    f"drafter {step!r} was not measured at batch {batch} and context {context}: name one that was"
                )
            name, each = step, found[0].median_s
        else:
            name, each = f"step {step:g} s", step
        K = cells[-1].width - 1
        verify = np.interp(
            np.arange(1, K + 2), [c.width for c in cells], [c.median_s for c in cells]
        )
        label = f"{self.shape.name} {name}-b{batch}-c{context}"
        return CostModel(
            each * np.arange(K + 1), verify, [0.0], 0.0, cells[0].median_s, label, self.device
        )

    def table(self, step: "str | float") -> CostTable:
        """`cost` at every batch and context, as `simspec sweep --cost` reads it; None where it did not fit. ValueError if nothing did."""

        def maybe(batch: int, context: int) -> CostModel | None:
            found = [
                *self.line(batch, context),
                *(self.line(batch, context, step) if isinstance(step, str) else []),
            ]
            return (
                None
                if found and not all(c.fits for c in found)
                else self.cost(batch, context, step)
            )

        made = {
            (b, c): maybe(b, c)
            for b in self.axis("batch")
            for c in self.axis("context")
            if self.line(b, c)
        }
        batches, contexts = (
            sorted({at[i] for at, model in made.items() if model is not None}) for i in (0, 1)
        )
        if not batches:
            raise ValueError(
                f"no cell of {self.shape.name} fits {self.device} at all its widths: measure smaller sizes"
            )
        return CostTable(
            tuple(batches),
            tuple(contexts),
            [[made.get((b, c)) for c in contexts] for b in batches],
            self.shape.name,
        )

    def to_dict(self) -> dict:
        """Plain lists and numbers, as the file holds them."""
        return asdict(self) | {"cells": [asdict(c) for c in self.cells]}

    def to_json(self, path) -> None:
        """Write one JSON object; the file is whole or not there."""
        write_json(path, self.to_dict())

    @classmethod
    def from_dict(cls, data) -> "Ladder":
        """The inverse of `to_dict`; ValueError for a missing or unknown key or a bad value."""
        check_keys(data, (f.name for f in fields(cls)))
        for name, kind in (
            ("device", str),
            ("dtype", str),
            ("graphed", bool),
            ("fused", bool),
            ("repeats", int),
            ("cells", list),
        ):
            if type(data[name]) is not kind or name == "repeats" and data[name] < 1:
                raise ValueError(
                    f"{name} is {str(data[name])[:80]!r}, expected {'text' if kind is str else f'a {kind.__name__}'}"
                )
        check_keys(data["shape"], (f.name for f in fields(ModelShape)))
        if type(data["shape"]["name"]) is not str or type(data["shape"]["tied"]) is not bool:
            raise ValueError("shape: name must be text and tied true or false")
        for row in data["cells"]:
            check_keys(row, (f.name for f in fields(Cell)))
        made = {
            "shape": ModelShape(**data["shape"]),
            "speeds": _speeds(data["speeds"]),
            "cells": tuple(Cell(**c) for c in data["cells"]),
        }
        return cls(**data | made)

    @classmethod
    def from_json(cls, path) -> "Ladder":
        """Read what `to_json` wrote; ValueError, one line with the path, for anything else."""
        return read_json(path, cls.from_dict, "ladder")

    def added(self, cells) -> "Ladder":
        """With more cells behind those there are."""
        return replace(self, cells=(*self.cells, *cells))


def _speeds(data) -> Speeds:
    check_keys(data, (f.name for f in fields(Speeds)))
    for name, value in data.items():
        check_keys(value, (f.name for f in fields(Spread)))
        if not all(type(x) in (int, float) and 0 < x < math.inf for x in value.values()):
            raise ValueError(f"{name} is {value}, expected positive numbers")
    return Speeds(**{name: Spread(**value) for name, value in data.items()})

"""Costs by batch size and context, as measured: between measured contexts a line, between batch
sizes a step, beyond nothing.
"""

from bisect import bisect_left
from dataclasses import dataclass, fields

import numpy as np

from simspec.cost import CostModel
from simspec.files import check_keys, read_json, write_json


@dataclass(frozen=True)
class CostTable:
    """A CostModel for every measured batch size and context.

    | field | type, shape | meaning |
    | --- | --- | --- |
    | batch | (int,) [nb], growing, >= 1 | sequences that are decoded together |
    | context | (int,) [nc], growing, >= 0 | tokens before the round; one 0 where the file does not say |
    | cells | ((CostModel or None,),) [nb][nc] | seconds of a round of the whole batch; None where it did not fit |
    | name | str | label in tables |

    Every cell prices drafts up to the same K and as many owed rows; every batch size and every
    context has a cell. ValueError otherwise.
    """

    batch: tuple
    context: tuple
    cells: tuple
    name: str = "cost"

    def __post_init__(self):
        if not isinstance(self.name, str):
            raise ValueError(f"cost table: name is {self.name!r}, expected text")
        for axis, least in (("batch", 1), ("context", 0)):
            object.__setattr__(self, axis, _axis(axis, getattr(self, axis), least))
        try:
            cells = tuple(tuple(row) for row in self.cells)
        except TypeError:
            raise ValueError(
                f"cost table {self.name!r}: cells is a {type(self.cells).__name__}, expected rows "
                "of cells"
            ) from None
        object.__setattr__(self, "cells", cells)
        shape = len(cells), *{len(row) for row in cells}
        if shape != (len(self.batch), len(self.context)):
            raise ValueError(
                f"cost table {self.name!r}: {len(self.batch)} batch sizes x {len(self.context)} "
                f"contexts, but rows of cells: {shape}"
            )
        known = [cell for row in cells for cell in row if cell is not None]
        if not all(isinstance(cell, CostModel) for cell in known):
            raise ValueError(
                f"cost table {self.name!r}: a cell is no CostModel, expected one or None in each"
            )
        for axis, lines in (("batch", cells), ("context", tuple(zip(*cells)))):
            for at, line in zip(getattr(self, axis), lines):
                if all(cell is None for cell in line):
                    raise ValueError(
                        f"cost table {self.name!r}: {axis} {at} has no cell at all: leave it out"
                    )
        sizes = {(cell.K, len(cell.catch_up), cell.nodes) for cell in known}
        if len(sizes) > 1:
            raise ValueError(
                f"cost table {self.name!r}: cells differ in (K, catch_up entries, nodes): "
                f"{sorted(sizes)}, expected one size"
            )

    @property
    def K(self) -> int:
        """The longest draft that every cell prices."""
        return next(cell.K for row in self.cells for cell in row if cell is not None)

    @property
    def device(self) -> str:
        """Where the cells come from."""
        return ", ".join(
            sorted({cell.device for row in self.cells for cell in row if cell is not None})
        )

    def at(self, batch: int | None = None, context: int | None = None) -> CostModel:
        """The costs of a batch of so many sequences, so many tokens in.

        batch is rounded up to the next size measured, as engines pad to the sizes that they
        captured; between two measured contexts c0 < c < c1 of that size every entry is t0 + (t1 -
        t0) (c - c0) / (c1 - c0). What was measured is returned as it is. None stands for the only
        size, or context, of the table. ValueError beyond what was measured.
        """
        size = self._one("batch", batch)
        if size > self.batch[-1] or size < 1:
            raise ValueError(
                f"cost table {self.name!r} has batch sizes 1 to {self.batch[-1]}, asked for "
                f"{size}: measure that size"
            )
        size, row = next((b, row) for b, row in zip(self.batch, self.cells) if b >= size)
        known = [(c, cell) for c, cell in zip(self.context, row) if cell is not None]
        context = self._one("context", context)
        contexts = [c for c, _ in known]
        if not contexts[0] <= context <= contexts[-1]:
            span = (
                f"contexts {contexts[0]} to {contexts[-1]}"
                if len(contexts) > 1
                else f"context {contexts[0]} only"
            )
            raise ValueError(
                f"cost table {self.name!r} has {span} at batch {size}, asked for {context}: "
                "measure that context"
            )
        i = bisect_left(contexts, context)
        if contexts[i] == context:
            return known[i][1]
        (c0, low), (c1, high) = known[i - 1 : i + 1]
        return _between(low, high, (context - c0) / (c1 - c0), f"{self.name}-b{size}-c{context}")

    def _one(self, axis: str, value: int | None) -> int:
        if value is None:
            if len(getattr(self, axis)) > 1:
                raise ValueError(
                    f"cost table {self.name!r} has several sizes of {axis}, "
                    f"{list(getattr(self, axis))}: say which"
                )
            return getattr(self, axis)[0]
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise ValueError(f"cost table {self.name!r}: {axis} is {value!r}, expected an integer")
        return int(value)

    def simplest(self) -> "CostModel | CostTable":
        """The one CostModel where one text at one context is all there is, else the table: what the
        commands write.
        """
        return self.at() if self.batch == (1,) and len(self.context) == 1 else self

    def describe(self) -> list[str]:
        """One line a cell, in milliseconds."""
        lines = []
        for size, row in zip(self.batch, self.cells):
            for tokens, cell in zip(self.context, row):
                said = "does not fit"
                if cell is not None:
                    draft, plain, *verify = (
                        f"{1e3 * t:.3f}"
                        for t in (cell.draft[-1], cell.baseline, cell.verify[0], cell.verify[-1])
                    )
                    said = f"draft of {self.K} {draft} ms, plain step {plain} ms, verifying 0 and {cell.nodes} {' and '.join(verify)} ms"
                lines.append(f"batch {size}, context {tokens}: {said}")
        return lines

    def to_dict(self) -> dict:
        """Plain lists and numbers, as the file holds them."""
        cells = [[None if cell is None else cell.to_dict() for cell in row] for row in self.cells]
        return {
            "name": self.name,
            "batch": list(self.batch),
            "context": list(self.context),
            "cells": cells,
        }

    def to_json(self, path) -> None:
        """Write the table as one JSON object; the file is whole or not there."""
        write_json(path, self.to_dict())

    @classmethod
    def from_dict(cls, data) -> "CostTable":
        """The inverse of `to_dict`; one CostModel's object becomes a table of one cell, batch 1.
        ValueError for anything else.
        """
        if not isinstance(data, dict) or "cells" not in data:
            model = CostModel.from_dict(data)
            return cls((1,), (0,), ((model,),), model.name)
        check_keys(data, (f.name for f in fields(cls)))
        for key in ("batch", "context", "cells"):
            if not isinstance(data[key], list):
                raise ValueError(f"{key} is {data[key]!r}, expected a list")
        if not all(isinstance(row, list) for row in data["cells"]):
            raise ValueError("cells is not a list of lists, expected one list a batch size")
        cells = tuple(
            tuple(None if cell is None else CostModel.from_dict(cell) for cell in row)
            for row in data["cells"]
        )
        return cls(tuple(data["batch"]), tuple(data["context"]), cells, data["name"])

    @classmethod
    def from_json(cls, path) -> "CostTable":
        """Read what `to_json`, or CostModel.to_json, wrote; ValueError, one line with the path, for
        anything else.
        """
        return read_json(path, cls.from_dict, "cost model")


def load_cost(path) -> "CostModel | CostTable":
    """What a cost file holds: one CostModel, or a CostTable; ValueError, one line with the path,
    where it is neither.
    """

    def parse(data):
        return (CostTable if isinstance(data, dict) and "cells" in data else CostModel).from_dict(
            data
        )

    return read_json(path, parse, "cost model")


def _axis(name, values, least) -> tuple:
    values = tuple(values.tolist() if isinstance(values, np.ndarray) else values)
    whole = all(isinstance(v, int) and not isinstance(v, bool) and v >= least for v in values)
    if not values or not whole or any(b <= a for a, b in zip(values, values[1:])):
        raise ValueError(
            f"cost table: {name} is {list(values)}, expected growing integers >= {least}"
        )
    return values


def _between(low: CostModel, high: CostModel, share: float, name: str) -> CostModel:
    def line(a, b):
        # Rounding must not lead outside the two measurements.
        return np.clip(a + (np.asarray(b) - a) * share, np.minimum(a, b), np.maximum(a, b))

    parts = {
        f.name: line(getattr(low, f.name), getattr(high, f.name))
        for f in fields(CostModel)
        if f.name not in ("name", "device")
    }
    return CostModel(
        **parts,
        name=name,
        device=low.device if low.device == high.device else f"{low.device}, {high.device}",
    )

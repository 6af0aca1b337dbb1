"""CostTable: measured costs by batch size and context; and whether costs may be compared.

Entries are linear between measured contexts, and stepwise between batch sizes.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import combinations
from os import PathLike
from typing import Any

import numpy as np

from simspec.cost.model import CostModel
from simspec.cost.provenance import CostOrigin, read_origin
from simspec.output.files import check_keys, read_json, write_json


@dataclass(frozen=True)
class CostTable:
    """A CostModel for every measured batch size and context.

    | field   | type, shape                      | meaning                                 |
    | ------- | -------------------------------- | --------------------------------------- |
    | batch   | (int,) [nb], growing, >= 1       | sequences that are decoded together     |
    | context | (int,) [nc], growing, >= 0       | tokens before the round; one 0: unknown |
    | cells   | ((CostModel or None,),) [nb][nc] | seconds of a round of the whole batch   |
    | name    | str                              | label in tables                         |

    A file holds the origin of all cells once.
    A cell is None where the batch did not fit. All cells price drafts up to the same K and the same
    backlog; every batch size and every context has a cell. ValueError otherwise.
    """

    batch: tuple[int, ...]
    context: tuple[int, ...]
    cells: tuple[tuple[CostModel | None, ...], ...]
    name: str = "cost"

    def __post_init__(self) -> None:
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
            for size, line in zip(getattr(self, axis), lines):
                if all(cell is None for cell in line):
                    raise ValueError(
                        f"cost table {self.name!r}: {axis} {size} has no cell at all: leave it out"
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
        """The devices of the cells."""
        return ", ".join(
            sorted({cell.device for row in self.cells for cell in row if cell is not None})
        )

    @property
    def origin(self) -> CostOrigin | None:
        """The origin that all cells share; None where they have none, or several."""
        origins = [cell.origin for row in self.cells for cell in row if cell is not None]
        return origins[0] if all(origin == origins[0] for origin in origins) else None

    @property
    def warnings(self) -> list[str]:
        """Warnings of the measurements of all cells."""
        cells = [cell for row in self.cells for cell in row if cell is not None]
        return list(dict.fromkeys(text for cell in cells for text in cell.warnings))

    def at(self, batch: int | None = None, context: int | None = None) -> CostModel:
        """The costs of a batch of that size after that many tokens.

        batch is rounded up to the next measured size, as engines pad to captured sizes. Between two
        measured contexts c0 < c < c1 of that size every entry is t0 + (t1 - t0) (c - c0) / (c1 -
        c0). None means the only size, or context, of the table. ValueError beyond what was
        measured.
        """
        size = self._single("batch", batch)
        if size > self.batch[-1] or size < 1:
            raise ValueError(
                f"cost table {self.name!r} has batch sizes 1 to {self.batch[-1]}, "
                f"asked for {size}: measure that size"
            )
        size, row = next((b, row) for b, row in zip(self.batch, self.cells) if b >= size)
        measured = [(c, cell) for c, cell in zip(self.context, row) if cell is not None]
        context = self._single("context", context)
        contexts = [c for c, _ in measured]
        if not contexts[0] <= context <= contexts[-1]:
            several = f"contexts {contexts[0]} to {contexts[-1]}"
            span = several if len(contexts) > 1 else f"context {contexts[0]} only"
            raise ValueError(
                f"cost table {self.name!r} has {span} at batch {size}, "
                f"asked for {context}: measure that context"
            )
        i = bisect_left(contexts, context)
        if contexts[i] == context:
            return measured[i][1]
        (c0, low), (c1, high) = measured[i - 1 : i + 1]
        return _between(low, high, (context - c0) / (c1 - c0), f"{self.name}-b{size}-c{context}")

    def _single(self, axis: str, value: int | None) -> int:
        if value is None:
            sizes: tuple[int, ...] = getattr(self, axis)
            if len(sizes) > 1:
                raise ValueError(
                    f"cost table {self.name!r} has several sizes of {axis}, {list(sizes)}: say "
                    "which"
                )
            return sizes[0]
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise ValueError(f"cost table {self.name!r}: {axis} is {value!r}, expected an integer")
        return int(value)

    def simplest(self) -> "CostModel | CostTable":
        """The one CostModel of a table of batch 1 and one context, else the table."""
        return self.at() if self.batch == (1,) and len(self.context) == 1 else self

    def describe(self) -> list[str]:
        """One line a cell, in milliseconds."""
        return [
            f"batch {size}, context {tokens}: {self._cell_text(cell)}"
            for size, row in zip(self.batch, self.cells)
            for tokens, cell in zip(self.context, row)
        ]

    def _cell_text(self, cell: CostModel | None) -> str:
        if cell is None:
            return "does not fit"
        times = cell.draft[-1], cell.baseline, cell.verify[0], cell.verify[-1]
        draft, plain, first, last = (f"{1e3 * seconds:.3f}" for seconds in times)
        return (
            f"draft of {self.K} {draft} ms, plain step {plain} ms, "
            f"verifying 0 and {cell.nodes} {first} and {last} ms"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, as in the file."""
        cells = [[None if cell is None else cell.to_dict() for cell in row] for row in self.cells]
        values: dict[str, Any] = {
            "name": self.name,
            "batch": list(self.batch),
            "context": list(self.context),
            "cells": cells,
        }
        if self.origin is None:
            return values
        for cell in (cell for row in cells for cell in row if cell is not None):
            del cell["origin"]
        return values | {"origin": self.origin.to_dict()}

    def to_json(self, path: str | PathLike[str]) -> None:
        """Writes the table as one JSON object, completely or not at all."""
        write_json(path, self.to_dict())

    @classmethod
    def from_dict(cls, data: Any) -> "CostTable":
        """The inverse of `to_dict`; one CostModel's object becomes a table of one cell, batch 1.

        ValueError for anything else.
        """
        if not isinstance(data, dict) or "cells" not in data:
            model = CostModel.from_dict(data)
            return cls((1,), (0,), ((model,),), model.name)
        data, origin = read_origin(data)
        check_keys(data, (f.name for f in fields(cls)))
        for key in ("batch", "context", "cells"):
            if not isinstance(data[key], list):
                raise ValueError(f"{key} is {data[key]!r}, expected a list")
        if not all(isinstance(row, list) for row in data["cells"]):
            raise ValueError("cells is not a list of lists, expected one list a batch size")

        def read_cell(cell: Any) -> CostModel | None:
            if cell is None:
                return None
            read = CostModel.from_dict(cell)
            return replace(read, origin=read.origin or origin)

        cells = tuple(tuple(read_cell(cell) for cell in row) for row in data["cells"])
        return cls(tuple(data["batch"]), tuple(data["context"]), cells, data["name"])

    @classmethod
    def from_json(cls, path: str | PathLike[str]) -> "CostTable":
        """Reads what `to_json`, or CostModel.to_json, wrote; ValueError, one line with the path."""
        return read_json(path, cls.from_dict, "cost model")


def load_cost(path: str | PathLike[str]) -> CostModel | CostTable:
    """The CostModel or CostTable of a file; ValueError, one line with the path, where it is
    neither.
    """
    return read_json(path, _cost, "cost model")


def _cost(data: Any) -> CostModel | CostTable:
    if isinstance(data, dict) and "cells" in data:
        return CostTable.from_dict(data)
    return CostModel.from_dict(data)


def _axis(name: str, values: Any, least: int) -> tuple[int, ...]:
    values = tuple(values.tolist() if isinstance(values, np.ndarray) else values)
    whole = all(isinstance(v, int) and not isinstance(v, bool) and v >= least for v in values)
    if not values or not whole or any(b <= a for a, b in zip(values, values[1:])):
        raise ValueError(
            f"cost table: {name} is {list(values)}, expected growing integers >= {least}"
        )
    return values


def _between(low: CostModel, high: CostModel, share: float, name: str) -> CostModel:
    def line(a: Any, b: Any) -> Any:
        # Rounding must not lead outside the two measurements.
        return np.clip(a + (np.asarray(b) - a) * share, np.minimum(a, b), np.maximum(a, b))

    parts: dict[str, Any] = {
        f.name: line(getattr(low, f.name), getattr(high, f.name))
        for f in fields(CostModel)
        if f.name not in ("name", "device", "origin", "precision", "predictor", "passes")
    }
    if low.passes is not None and high.passes is not None:
        rows = min(len(low.passes), len(high.passes))
        parts["passes"] = line(low.passes[:rows], high.passes[:rows])
    if low.predictor is not None and high.predictor is not None:
        parts["predictor"] = line(low.predictor, high.predictor)
    between = CostModel(
        **parts,
        name=name,
        origin=low.origin if low.origin == high.origin else None,
        device=low.device if low.device == high.device else f"{low.device}, {high.device}",
    )
    return between.derived(partial(_between, share=share, name=name), low, high)


MIXED = "--mixed-costs"


def check_comparable(costs: Mapping[str, Any], mixed: bool = False) -> list[str]:
    """Notes on {file: CostModel or ratio} that are compared with each other; one line each.

    | origins | outcome |
    | --- | --- |
    | a known device, thread count or dtype differs | ValueError; with `mixed` a note |
    | one is not known | a note, with two labels of devices where they differ |

    Ratios have no origin and agree with everything.
    """
    models = {file: cost for file, cost in costs.items() if isinstance(cost, CostModel)}
    origins = {file: cost.origin or CostOrigin() for file, cost in models.items()}
    notes = []
    for (file, ours), (other, theirs) in combinations(origins.items(), 2):
        if names := ours.differences(theirs):
            values = " and ".join(
                f"{name} ({getattr(ours, name)} and {getattr(theirs, name)})" for name in names
            )
            reason = f"costs of {file} and {other} differ in {values}"
            if not mixed:
                raise ValueError(
                    f"{reason}, expected one origin: measure them in one sitting, "
                    f"or compare them as they are with {MIXED}"
                )
            notes.append(f"{reason}: their speedups do not compare")
            break
    unknown = [file for file, origin in origins.items() if not origin.known]
    if unknown and len(models) > 1:
        notes.append(_unknown_note(unknown, models))
    return notes


def warning_notes(costs: Mapping[str, Any]) -> list[str]:
    """A line for each warning of {file: CostModel or ratio}, with the files that hold it."""
    files: dict[str, list[str]] = {}
    for file, cost in costs.items():
        for warning in cost.warnings if isinstance(cost, CostModel) else ():
            files.setdefault(warning, []).append(file)
    return [
        f"{of[0]}{f' and {len(of) - 1} more' * (len(of) > 1)}: {warning}"
        for warning, of in files.items()
    ]


def _unknown_note(unknown: list[str], models: Mapping[str, CostModel]) -> str:
    labels: dict[str, str] = {}
    for file in unknown:
        labels.setdefault(models[file].device, file)
    sources = " and ".join(f"{file} ({label!r})" for label, file in list(labels.items())[:2])
    return (
        f"{len(unknown)} of {len(models)} cost files do not say device, threads and dtype, such as "
        f"{sources}: whether they compare is unknown until they are measured again"
    )

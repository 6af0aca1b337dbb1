"""CostTable: measured costs by batch size and context; and whether costs may be compared.

Entries are linear between measured contexts, and stepwise between batch sizes.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import combinations
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from simspec.cost.model import CostModel
from simspec.cost.provenance import CostOrigin, Count, read_origin
from simspec.output.files import check_keys, convert_fields, converted, read_json, write_json


@dataclass(frozen=True)
class CostTable:
    """A CostModel for every measured batch size and context.

    A file holds the origin of all cells once.
    A cell is None where the batch did not fit. All cells price drafts up to the same K and the same
    backlog; every batch size and every context has a cell. ValueError otherwise.
    """

    # (int,) [nb], growing, >= 1: sequences that are decoded together
    batch: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1)]
    # (int,) [nc], growing, >= 0: tokens before the round; one 0: unknown
    context: Annotated[tuple[Count, ...], Meta(min_length=1)]
    # ((CostModel or None,),) [nb][nc]: seconds of a round of the whole batch
    cells: tuple[tuple[CostModel | None, ...], ...]
    name: str = "cost"  # label in tables

    def __post_init__(self) -> None:
        convert_fields(self, "cost table")
        for axis in ("batch", "context"):
            sizes = getattr(self, axis)
            if any(b <= a for a, b in zip(sizes, sizes[1:])):
                raise self._error(f"{axis} is {list(sizes)}, expected growing integers")
        shape = len(self.cells), *{len(row) for row in self.cells}
        if shape != (len(self.batch), len(self.context)):
            raise self._error(
                f"{len(self.batch)} batch sizes x {len(self.context)} contexts, "
                f"but rows of cells: {shape}"
            )
        for axis, lines in (("batch", self.cells), ("context", tuple(zip(*self.cells)))):
            for size, line in zip(getattr(self, axis), lines):
                if all(cell is None for cell in line):
                    raise self._error(f"{axis} {size} has no cell at all: leave it out")
        cuts = {(cell.K, len(cell.catch_up), cell.nodes) for cell in self.known}
        if len(cuts) > 1:
            raise self._error(
                f"cells differ in (K, catch_up entries, nodes): {sorted(cuts)}, expected one size"
            )

    def _error(self, reason: str) -> ValueError:
        return ValueError(f"cost table {self.name!r}: {reason}")

    @property
    def known(self) -> list[CostModel]:
        """The cells that fit."""
        return [cell for row in self.cells for cell in row if cell is not None]

    @property
    def K(self) -> int:
        """The longest draft that every cell prices."""
        return self.known[0].K

    @property
    def device(self) -> str:
        """The devices of the cells."""
        return ", ".join(sorted({cell.device for cell in self.known}))

    @property
    def origin(self) -> CostOrigin | None:
        """The origin that all cells share; None where they have none, or several."""
        origins = [cell.origin for cell in self.known]
        return origins[0] if all(origin == origins[0] for origin in origins) else None

    @property
    def warnings(self) -> list[str]:
        """Warnings of the measurements of all cells."""
        return list(dict.fromkeys(text for cell in self.known for text in cell.warnings))

    def at(self, batch: int | None = None, context: int | None = None) -> CostModel:
        """The costs of a batch of that size after that many tokens.

        batch is rounded up to the next measured size, as engines pad to captured sizes. Between two
        measured contexts c0 < c < c1 of that size every entry is t0 + (t1 - t0) (c - c0) / (c1 -
        c0). None means the only size, or context, of the table. ValueError beyond what was
        measured.
        """
        size = self._single("batch", batch)
        if size > self.batch[-1] or size < 1:
            raise self._error(
                f"has batch sizes 1 to {self.batch[-1]}, asked for {size}: measure that size"
            )
        size, row = next((b, row) for b, row in zip(self.batch, self.cells) if b >= size)
        measured = [(c, cell) for c, cell in zip(self.context, row) if cell is not None]
        context = self._single("context", context)
        contexts = [c for c, _ in measured]
        if not contexts[0] <= context <= contexts[-1]:
            raise self._error(
                f"has contexts {contexts[0]} to {contexts[-1]} at batch {size}, asked for "
                f"{context}: measure that context"
            )
        i = bisect_left(contexts, context)
        if contexts[i] == context:
            return measured[i][1]
        (c0, low), (c1, high) = measured[i - 1 : i + 1]
        return _between(low, high, (context - c0) / (c1 - c0), f"{self.name}-b{size}-c{context}")

    def _single(self, axis: str, value: int | None) -> int:
        sizes: tuple[int, ...] = getattr(self, axis)
        if value is None:
            if len(sizes) > 1:
                raise self._error(f"has several sizes of {axis}, {list(sizes)}: say which")
            return sizes[0]
        size: int = converted(f"cost table {self.name!r}: {axis}", value, int)
        return size

    def simplest(self) -> "CostModel | CostTable":
        """The one CostModel of a table of batch 1 and one context, else the table."""
        return self.at() if self.batch == (1,) and len(self.context) == 1 else self

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

        def read_cell(cell: Any) -> CostModel | None:
            if cell is None:
                return None
            read = CostModel.from_dict(cell)
            return replace(read, origin=read.origin or origin)

        rows = converted("cells", data["cells"], list[list[Any]])
        return cls(**data | {"cells": [[read_cell(cell) for cell in row] for row in rows]})

    @classmethod
    def from_json(cls, path: str | PathLike[str]) -> "CostTable":
        """Reads what `to_json`, or CostModel.to_json, wrote; ValueError, one line with the path."""
        return read_json(path, cls.from_dict, "cost model")


BUNDLED, ENDING = Path(__file__).parents[1] / "published", ".cost.json"


def bundled_costs() -> dict[str, Path]:
    """{name: file} of the measured costs that come with the package."""
    return {path.name.removesuffix(ENDING): path for path in sorted(BUNDLED.glob(f"*{ENDING}"))}


def cost_file(path: str | PathLike[str]) -> Path:
    """The file of bundled costs by their name; any other path as it is."""
    return Path(path) if Path(path).exists() else bundled_costs().get(str(path), Path(path))


def load_cost(path: str | PathLike[str]) -> CostModel | CostTable:
    """The costs of a file, or bundled ones by name; ValueError, one line with the path, for
    anything else.
    """

    def read(data: Any) -> CostModel | CostTable:
        table = isinstance(data, dict) and "cells" in data
        return CostTable.from_dict(data) if table else CostModel.from_dict(data)

    return read_json(cost_file(path), read, "cost model")


def _between(low: CostModel, high: CostModel, share: float, name: str) -> CostModel:
    def line(a: Any, b: Any) -> Any:
        # Rounding must not lead outside the two measurements.
        return np.clip(a + (np.asarray(b) - a) * share, np.minimum(a, b), np.maximum(a, b))

    parts: dict[str, Any] = {
        f.name: line(getattr(low, f.name), getattr(high, f.name))
        for f in fields(CostModel)
        if f.name not in ("name", "device", "origin", "precision", "predictor")
    }
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

    ValueError, with `mixed` a note, where a known device, thread count or dtype differs; a note
    where one is not known. Ratios have no origin and agree with everything.
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
        labels = {models[file].device: file for file in reversed(unknown)}  # the first of each
        sources = " and ".join(f"{labels[d]} ({d!r})" for d in list(labels)[:-3:-1])
        notes.append(
            f"{len(unknown)} of {len(models)} cost files do not say device, threads and dtype, "
            f"such as {sources}: whether they compare is unknown until they are measured again"
        )
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

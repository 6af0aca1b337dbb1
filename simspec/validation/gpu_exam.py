"""Exam: published speedups of GPU engines against kernel times and two constants an engine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simspec.cost.fit import PredictionErrors
from simspec.validation.gpu_cells import TERMS, Array, GpuCell, Spent, cost_of, spent
from simspec.validation.gpu_tables import AUDIT, all_cells, read_audit

GOALS = {
    "batch 1": {"no fit": 0.08, "fitted": 0.04},
    "batch 2 to 128": {"no fit": 0.12, "fitted": 0.07},
}
"""Largest median error of the cells that fit no constant."""


@dataclass(frozen=True)
class Engine:
    """An engine, and what its constants are taken from.

    | field | meaning |
    | --- | --- |
    | kernels | device and engine of the kernel times |
    | fitted | the table whose cells fit `terms`, see `fit_cells` |
    | terms | the two constants, of `gpu_cells.TERMS` |
    | plain | published seconds of a plain step, its batch and context; None: by table |
    | step | seconds that a plain step takes beyond its kernels, where they are published |
    """

    kernels: tuple[str, str]
    fitted: str
    terms: tuple[str, str]
    plain: tuple[float, int, int] | None = None
    step: float = 0.0


ENGINES = {
    # step: overhead_constant_per_step of SpecDecode-Bench's predictor.py
    "vLLM 0.10.1": Engine(
        ("h100", "vllm"), "specdecode-bench-eagle3", ("draft", "row"), step=1.20683946e-3
    ),
    # plain: 146.38 tokens a second of Llama-3.1-8B alone (eagle3_longctx_full/curves.csv)
    "vLLM 0.23": Engine(
        ("h100", "vllm"), "draft-length-audit", ("draft", "row"), plain=(1 / 146.38, 1, 6000)
    ),
    "vLLM #20780, EAGLE-1": Engine(("h100", "vllm"), "vllm-20780-eagle1", ("round", "draft")),
    "vLLM #20780, EAGLE-3": Engine(("h100", "vllm"), "vllm-20780-eagle3", ("round", "draft")),
    "SGLang": Engine(
        ("h200", "sglang"), "specbundle/Llama-3.1-8B-Instruct-SpecForge", ("round", "draft")
    ),
}
"""Rows differ between batch sizes alone; at one batch size the second constant is of a round."""

WAYS = ("kernels alone", "no fit", "other engines", "fitted")
"""Ways to set the constants of a round.

| way | constants |
| --- | --- |
| kernels alone | 0: plain decoding's published speed gives `step` alone |
| no fit | `round` is `step`: the host prepares a drafter's pass as it does the target's |
| other engines | fitted to the few cells of all other engines |
| fitted | fitted to the engine's own few cells |
"""


def fit_cells(cells: Sequence[GpuCell], engine: str) -> list[int]:
    """Indices of the cells that fit an engine: of its table's gsm8k, or of its only task.

    The smallest and the largest batch, and the smallest and the largest K of each.
    """
    table = ENGINES[engine].fitted
    held = [i for i, c in enumerate(cells) if c.table == table and c.task in ("gsm8k", "")]
    found = []
    for batch in {f(cells[i].batch for i in held) for f in (min, max)} if held else ():
        at = [i for i in held if cells[i].batch == batch]
        ends = {f(cells[i].K for i in at) for f in (min, max)}
        found += [i for i in at if cells[i].K in ends]
    return sorted(found)


def held_constants(cell: GpuCell, work: Spent, fitted: Array | None, step: float) -> Array:
    """float64[5]: seconds of TERMS; fitted: those from `round` on, None: the way 'no fit'.

    A published plain step p gives step = p - kernels - row B; where kernels alone take longer than
    p, they are scaled to it.
    """
    kernels, held = 1.0, np.zeros(3) if fitted is None else fitted
    if cell.plain_step:
        left = max(cell.plain_step - held[2] * cell.batch, 0.0)
        spent_in_kernels = float(work.plain[0, 0])
        kernels, step = min(1.0, left / spent_in_kernels), max(left - spent_in_kernels, 0.0)
    if fitted is None and cell.drafter != "ngram":
        held = np.array([step, 0.0, 0.0])
    return np.array([kernels, step, *held])


def fit(
    cells: Sequence[GpuCell], works: Sequence[Spent], steps: Mapping[str, float],
    chosen: Iterable[int], terms: Iterable[str],
) -> Array:  # fmt: skip
    """float64[3]: seconds of round, draft and row >= 0 of least squared relative errors."""
    from scipy.optimize import least_squares

    chosen, places = list(chosen), [TERMS.index(term) - 2 for term in terms]

    def constants(values: Array) -> Array:
        found = np.zeros(3)
        found[places] = values / 1e4
        return found

    def errors(values: Array) -> list[float]:
        return [
            predicted(cells[i], works[i], constants(values), steps) / cells[i].speedup - 1
            for i in chosen
        ]

    exact = dict.fromkeys(("xtol", "ftol", "gtol"), 1e-12)
    found = least_squares(errors, np.ones(len(places)), bounds=(0, np.inf), **exact)
    return constants(found.x)


def predicted(
    cell: GpuCell, work: Spent, fitted: Array | None, steps: Mapping[str, float]
) -> float:
    """The speedup of a cell at an engine's constants, see `held_constants`."""
    return work.speedup(held_constants(cell, work, fitted, steps[cell.engine]))


@dataclass(frozen=True)
class Exam:
    """Cells and their predictions.

    | field | meaning |
    | --- | --- |
    | cells | GpuCell |
    | fitted | bool a cell: it fits constants, and counts in no error |
    | speedups | {way of WAYS: predicted speedup of each cell} |
    | constants | {engine: microseconds of step, round, draft, row; step 0: by table} |
    | causes | rows of `draining_causes` |
    | notes | files that are missing |
    """

    cells: tuple[GpuCell, ...]
    fitted: tuple[bool, ...]
    speedups: Mapping[str, tuple[float, ...]]
    constants: Mapping[str, Mapping[str, float]]
    causes: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def errors(self, way: str, chosen: Iterable[int]) -> list[float]:
        """Predicted over published, less 1, of the cells at these indices."""
        return [self.speedups[way][i] / self.cells[i].speedup - 1 for i in chosen]

    def groups(self) -> dict[str, list[int]]:
        """{name: indices of cells that were not fitted}: by batch, engine and table."""
        found: dict[str, list[int]] = {name: [] for name in GOALS}
        kept = [(i, cell) for i, cell in enumerate(self.cells) if not self.fitted[i]]
        for i, cell in kept:
            found["batch 1" if cell.batch == 1 else "batch 2 to 128"].append(i)
        for batch in sorted({cell.batch for _, cell in kept} - {1}):
            found[f"batch {batch}"] = [i for i, cell in kept if cell.batch == batch]
        for i, cell in kept:
            found.setdefault(cell.engine, []).append(i)
        for i, cell in kept:
            found.setdefault(cell.table, []).append(i)
        return {name: held for name, held in found.items() if held}

    @property
    def ok(self) -> bool:
        """Whether all medians are within GOALS."""
        groups = self.groups()
        return all(
            np.median(np.abs(self.errors(way, groups[name]))) <= goal
            for name, goals in GOALS.items()
            for way, goal in goals.items()
            if name in groups
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: {ok, groups, constants, cells, causes, notes}."""
        return {
            "ok": self.ok,
            "groups": [
                {"group": name, "goals": GOALS.get(name, {})}
                | {way: PredictionErrors.of(self.errors(way, held)).to_dict() for way in WAYS}
                for name, held in self.groups().items()
            ],
            "constants": self.constants,
            "cells": [
                {
                    "engine": cell.engine, "table": cell.table, "task": cell.task,
                    "batch": cell.batch, "K": cell.K, "target": cell.target,
                    "accepted_length": cell.accepted_length, "measured": cell.speedup,
                    "fitted": self.fitted[i], "predicted": {w: self.speedups[w][i] for w in WAYS},
                }
                for i, cell in enumerate(self.cells)
            ],
            "causes": list(self.causes),
            "notes": list(self.notes),
        }  # fmt: skip


def exam(
    folder: Path | None = None, recordings: Mapping[str, Mapping[str, Any]] | None = None
) -> Exam:
    """The exam of this package's tables, and of the files that a folder holds."""
    cells, notes = all_cells(folder, recordings)
    path = AUDIT.under(folder) if folder is not None else None
    return examine(cells, notes, path)


def examine(cells: Sequence[GpuCell], notes: Sequence[str] = (), audit: Path | None = None) -> Exam:
    """The exam of these cells; audit: the file that explains its batches."""
    works = [spent(cell, ENGINES[cell.engine].kernels) for cell in cells]
    steps = {name: _step(engine) for name, engine in ENGINES.items()}
    engines = [name for name in ENGINES if fit_cells(cells, name)]
    chosen = {name: fit_cells(cells, name) for name in engines}
    own = {name: fit(cells, works, steps, chosen[name], ENGINES[name].terms) for name in engines}
    others = {}
    for name in engines:
        rest = [i for other in engines if other != name for i in chosen[other]]
        # at one batch size a constant of a row and one of a drafted token are the same
        terms = TERMS[2:] if len({cells[i].batch for i in rest}) > 1 else TERMS[2:4]
        others[name] = fit(cells, works, steps, rest, terms)
    zeros, unfitted = dict.fromkeys(engines, np.zeros(3)), dict.fromkeys(engines)
    ways: tuple[Mapping[str, Array | None], ...] = (zeros, unfitted, others, own)
    return Exam(
        tuple(cells),
        tuple(i in {j for held in chosen.values() for j in held} for i in range(len(cells))),
        {
            way: tuple(predicted(c, w, held[c.engine], steps) for c, w in zip(cells, works))
            for way, held in zip(WAYS, ways)
        },
        {
            name: {t: 1e6 * v for t, v in zip(TERMS[1:], (steps[name], *own[name]))}
            for name in engines
        },
        tuple(draining_causes(audit, own["vLLM 0.23"], steps)) if audit else (),
        tuple(notes),
    )


def _step(engine: Engine) -> float:
    if engine.plain is None:
        return engine.step
    seconds, batch, context = engine.plain
    cost = cost_of("llama-3.1-8b", "eagle3", 1, engine.kernels, batch, context)
    return max(seconds - cost.baseline, 0.0)


def draining_causes(path: Path, fitted: Array, steps: Mapping[str, float]) -> list[dict[str, Any]]:
    """Median error of the audit's batches under three readings of them, at the same constants."""
    readings = {
        "published accepted lengths, full batches": (False, False),
        "each task's own accepted length, full batches": (True, False),
        "own accepted length, waves that drain": (True, True),
    }
    found = []
    for name, (own, waves) in readings.items():
        cells = [cell for cell in read_audit(path, own, waves) if cell.batch > 1]
        errors = [
            predicted(cell, spent(cell, ENGINES[cell.engine].kernels), fitted, steps)
            / cell.speedup - 1
            for cell in cells
        ]  # fmt: skip
        found.append({"reading": name} | PredictionErrors.of(errors).to_dict())
    return found

"""Costs of a shape: steps of an engine that loads no weights, timed in blocks of draft lengths.

A pass takes the same seconds whatever its weights are, so a config.json prices a model, and every
draft is rejected, so that a step of K drafts makes one token. A file of steps holds the blocks;
`step_table` makes the cost table of them.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from real.engines.measure import DIGITS, with_warning
from real.measure.estimate import DRIFT, LEVEL, WIDTHS, Estimate, filled, trimmed_mean
from simspec import CostModel
from simspec.cost.gate import MIN_BLOCKS, SECONDS
from simspec.cost.provenance import LISTS, PARTS, CostOrigin, CostPrecision, converted
from simspec.cost.table import CostTable
from simspec.output.files import read_json

DRAWS = 100
"""Bootstrap replicates of a cell, over its blocks."""
Size = Annotated[int, Meta(ge=1, le=1 << 20)]
Length = Annotated[int, Meta(ge=0, le=64)]
Second = Annotated[float, Meta(ge=SECONDS[0], le=SECONDS[1])]
Text = Annotated[str, Meta(max_length=1000)]


@dataclass(frozen=True)
class StepCell:
    """Steps of one batch size, context and draft length.

    | field | meaning |
    | --- | --- |
    | batch, context | sequences that decode together, and their tokens before the first step |
    | k | drafts of each sequence in a step; 0: a plain step |
    | rate | share of drafts that the engine accepts where it accepted the one before |
    | tokens | emitted in a step, of each sequence |
    | seconds | mean seconds of a step, of each block of consecutive steps |
    """

    batch: Size
    context: Size
    k: Length
    rate: Annotated[float, Meta(ge=0, le=1)]
    tokens: Annotated[float, Meta(ge=1, le=65)]
    seconds: Annotated[tuple[Second, ...], Meta(min_length=1, max_length=1000)]


@dataclass(frozen=True)
class StepRun:
    """The steps of one engine, drafter and shape.

    alternating: blocks of all lengths took turns, so that block i of one belongs to block i of
    another; otherwise every length had an engine of its own. settings: of the engine, in words.
    """

    engine: Text
    version: Text
    runner: Text
    device: Text
    threads: Annotated[int, Meta(ge=0)]
    dtype: Text
    shape: Text
    drafter: Text
    block: Size
    alternating: bool
    created: Text
    cells: Annotated[tuple[StepCell, ...], Meta(max_length=100_000)]
    settings: Mapping[str, Text] = field(default_factory=dict)

    @property
    def origin(self) -> CostOrigin:
        """Where the costs come from."""
        engine = f"{self.engine} {self.version}, {self.runner} runner"
        return CostOrigin(
            device=self.device, threads=self.threads, dtype=self.dtype,
            engines={"target": engine, "drafter": f"{engine}, {self.drafter}"},
            versions={self.engine: self.version}, created=self.created,
            settings={"shape": self.shape, "steps in a block": str(self.block), **self.settings},
        )  # fmt: skip


def read_steps(path: str | PathLike[str]) -> StepRun:
    """The steps of a file; ValueError, one line with the path, for anything else."""

    def made(data: Any) -> StepRun:
        run: StepRun = converted("steps", data, StepRun)
        return run

    return read_json(path, made, "file of steps")


def step_table(run: StepRun, seed: int = 0) -> CostTable:
    """Costs by batch and context of the steps in which every draft was rejected.

    verify[K] is the trimmed mean of the blocks of K drafts, all of the drafting within it; `draft`
    is 0. Lengths between measured ones are linear, without samples. Replicates draw blocks with
    replacement: alternating ones together, those of several engines each apart. ValueError where a
    batch and context has no plain step, or another longest draft than the first.
    """
    found: dict[tuple[int, int], dict[int, np.ndarray]] = defaultdict(dict)
    for cell in run.cells:
        if cell.rate == 0:
            found[cell.batch, cell.context][cell.k] = np.array(cell.seconds)
    if not found:
        raise ValueError("no step rejects all of its drafts, expected cells of rate 0")
    K = max(next(iter(found.values())))
    for (batch, context), blocks in found.items():
        if 0 not in blocks or max(blocks) != K:
            raise ValueError(
                f"batch {batch}, context {context} has steps of {sorted(blocks)} drafts, expected "
                f"plain ones, and the longest draft {K} of the other cells"
            )
        if run.alternating and len({len(held) for held in blocks.values()}) > 1:
            raise ValueError(
                f"batch {batch}, context {context}: alternating blocks differ in number"
            )
    batches, contexts = (tuple(sorted(set(axis))) for axis in zip(*found))
    rng = np.random.default_rng(seed)
    rows = []
    for batch in batches:
        cells = []
        for context in contexts:
            held = found.get((batch, context))
            cells.append(None if held is None else _cost(run, held, K, batch, context, rng))
        rows.append(tuple(cells))
    return CostTable(batches, contexts, tuple(rows), _name(run))


def _name(run: StepRun) -> str:
    return f"{run.engine} {run.version} {run.runner}, {run.shape}, {run.drafter}"


def _cost(
    run: StepRun, blocks: Mapping[int, np.ndarray], K: int, batch: int, context: int,
    rng: np.random.Generator,
) -> CostModel:  # fmt: skip
    """The costs of one batch and context."""

    def ratios(drawn: Mapping[int, np.ndarray]) -> dict[int, Estimate]:
        plain = _estimate(drawn[0]).seconds
        if run.alternating:
            return {k: _estimate(held / drawn[0]) for k, held in drawn.items()}
        return {k: _over(_estimate(held), plain) for k, held in drawn.items()}

    baseline = _estimate(blocks[0])
    measured = ratios(blocks) | {0: _over(baseline, baseline.seconds)}
    verify = filled(measured, K)
    replicates = []
    for _ in range(DRAWS):
        same = rng.integers(0, len(blocks[0]), len(blocks[0]))
        drawn = {
            k: held[same if run.alternating else rng.integers(0, len(held), len(held))]
            for k, held in blocks.items()
        }
        replicates.append([each.seconds for each in filled(ratios(drawn), K)])
    widths = [e.half_width * baseline.seconds for e in verify]
    empty = {
        "draft": [0.0] * (K + 1),
        "catch_up": [0.0],
        "overhead": 0.0,
        "feature": 0.0,
        "node": 0.0,
    }
    cost = CostModel(
        draft=np.zeros(K + 1),
        verify=np.array([e.seconds for e in verify]) * baseline.seconds,
        catch_up=np.zeros(1),
        overhead=0.0,
        baseline=baseline.seconds,
        name=f"{_name(run)}, batch {batch}",
        device=run.device,
        origin=run.origin,
        context=float(context),
        precision=CostPrecision(
            level=LEVEL,
            half_width=_parts(K, [w if np.isfinite(w) else None for w in widths], None)
            | {"baseline": baseline.half_width if np.isfinite(baseline.half_width) else None},
            samples=_parts(K, [e.samples for e in verify], 0) | {"baseline": baseline.samples},
            seconds=float(run.block * sum(held.sum() for held in blocks.values())),
            warnings=tuple(_drift(blocks[0]) if not run.alternating else ()),
            replicates={part: [value] * DRAWS for part, value in empty.items()}
            | {"verify": np.round(replicates, DIGITS).tolist()},
            blocks=min(map(len, blocks.values())),
        ),
    )
    return with_warning(cost)


def _estimate(seconds: np.ndarray) -> Estimate:
    mean, width = trimmed_mean(seconds, np.ones(len(seconds)))
    return Estimate(mean, width, len(seconds))


def _over(e: Estimate, plain: float) -> Estimate:
    return Estimate(e.seconds / plain, e.half_width / plain, e.samples)


def _parts(K: int, verify: list[Any], empty: Any) -> dict[str, Any]:
    lists = {"draft": [empty] * (K + 1), "verify": verify, "catch_up": [empty]}
    return {part: lists[part] if part in LISTS else empty for part in PARTS}


def _drift(plain: np.ndarray) -> list[str]:
    """One line where plain steps at the start and at the end differ beyond noise."""
    first, last = (_estimate(half) for half in np.array_split(plain, 2))
    if min(first.samples, last.samples) < MIN_BLOCKS:
        return []
    shift, noise = last.seconds / first.seconds - 1, np.hypot(first.half_width, last.half_width)
    if abs(shift) <= max(DRIFT, WIDTHS * noise / first.seconds):
        return []
    return [
        f"plain steps drifted by {shift:+.1%} between the start and the end: measure again, idle"
    ]

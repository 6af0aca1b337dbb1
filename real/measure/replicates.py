"""Joint replicates of a cost: a bootstrap over the timing blocks of its sitting."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from real.measure.estimate import LEVEL
from real.measure.samples import Samples
from real.measure.timed_cost import Priced, timed_cost
from simspec import CostModel

DRAWS, KEPT = 200, 64
"""Replicates that intervals come from, and those that a file holds."""

Ratios = dict[str, np.ndarray]
"""The parts of a cost in plain steps."""


def draw_blocks(blocks: int, seed: int, draws: int = DRAWS) -> np.ndarray:
    """int64 [draws, blocks]: how often each block is drawn, with replacement."""
    if not blocks:
        return np.zeros((0, 0), np.int64)
    return np.random.default_rng(seed).multinomial(blocks, np.full(blocks, 1 / blocks), size=draws)


def replicate_costs(
    target: Samples, own: Samples, priced: Priced, cost: CostModel, draws: np.ndarray
) -> list[Ratios]:
    """`timed_cost` of every row of `draws`, in plain steps.

    They lie about `cost`, wider than resamples by Student's t of their blocks over the normal.
    """
    assert cost.precision is not None  # timed_cost gives one
    point = _ratios(cost)
    wider = {part: _widening(cost.precision.samples.get(part, 0)) for part in point}
    found = []
    for drawn in draws:
        target.draws = own.draws = drawn
        try:
            resampled = _ratios(timed_cost(target, own, priced))
        finally:
            target.draws = own.draws = None
        found.append(
            {p: np.maximum(point[p] + wider[p] * (r - point[p]), 0) for p, r in resampled.items()}
        )
    return found


def with_replicates(cost: CostModel, replicates: Sequence[Ratios], kept: int = KEPT) -> CostModel:
    """The cost with intervals from all replicates, and the first `kept` of them for its file."""
    precision = cost.precision
    assert precision is not None  # as above
    if len(replicates) < 2:
        return cost
    half_width, point = dict(precision.half_width), _ratios(cost)
    for part in set(half_width) - {"baseline"}:
        away = np.abs(np.array([r[part] for r in replicates]) - point[part])
        error = np.quantile(away, LEVEL, axis=0) * cost.baseline
        samples = precision.samples[part]
        if isinstance(samples, list):
            half_width[part] = [float(e) if n > 1 else None for e, n in zip(error, samples)]
        else:
            half_width[part] = float(error) if samples > 1 else None
    rows = {
        part: [np.round(r[part], 5).tolist() for r in replicates[:kept]] for part in replicates[0]
    }
    return replace(cost, precision=replace(precision, half_width=half_width, replicates=rows))


def _ratios(cost: CostModel) -> Ratios:
    names = ["draft", "verify", "catch_up", "overhead", "feature", "node"]
    names += ["predictor"] if cost.predictor is not None else []
    return {name: np.asarray(getattr(cost, name), np.float64) / cost.baseline for name in names}


def _widening(samples: Any) -> Any:
    """Of each entry by its number of blocks; entries between measured ones have the fewest."""
    counts = np.array(samples, np.float64)
    measured = counts[counts > 1]
    if not len(np.atleast_1d(measured)) or not measured.size:
        return 1.0
    blocks = np.where(counts > 1, counts, measured.min())
    # a resample holds none to several of an entry's blocks, which widens it as n / (n - 1) would
    return stdtrit(blocks - 1, (1 + LEVEL) / 2) / ndtri((1 + LEVEL) / 2)

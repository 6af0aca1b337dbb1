"""Costs with replicates made by hand, and what a measurement of known spread would give."""

from dataclasses import replace

import numpy as np

from simspec.cost.model import CostModel
from simspec.cost.provenance import LISTS, PARTS, REPLICATED, CostPrecision


def precision_of(cost: CostModel) -> CostPrecision:
    """The precision of costs that nobody measured: no intervals."""
    sizes = {part: len(getattr(cost, part)) for part in LISTS}
    single = [part for part in PARTS if part not in LISTS]
    unknown = {part: [None] * size for part, size in sizes.items()} | dict.fromkeys(single)
    filled = {part: [0] * size for part, size in sizes.items()} | dict.fromkeys(single, 0)
    return CostPrecision(0.0, unknown, filled)


def replicated(cost: CostModel, R: int = 64, spread: float = 0.1, seed: int = 0) -> CostModel:
    """The costs with R lognormal replicates of each cell, `spread` the deviation of the logs."""
    random = np.random.default_rng(seed)
    parts = (*REPLICATED, *(() if cost.predictor is None else ("predictor",)))
    replicates = {}
    for part in parts:
        ratio = np.asarray(getattr(cost, part)) / cost.baseline
        noise = np.exp(spread * random.standard_normal((R, *ratio.shape)))
        replicates[part] = (ratio * noise).tolist()
    held = cost.precision or precision_of(cost)
    held = replace(held, replicates=replicates, blocks=40, disturbed=0)
    return replace(cost, precision=held)

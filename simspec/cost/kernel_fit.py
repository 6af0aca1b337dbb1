"""Constants of an engine, fitted to published seconds of steps and rounds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simspec.cost.kernels import (
    TERMS,
    Drafter,
    EngineConstants,
    KernelPrices,
    kernel_cost,
)
from simspec.cost.shapes import ModelShape

PASSES = 20
"""Reweightings: residuals are relative to a plain step that the fit itself moves."""


@dataclass(frozen=True)
class SpeedCell:
    """One published figure of a batch: seconds of a step or round, or a round in plain steps.

    | field | meaning |
    | --- | --- |
    | target, drafter | models, as in `kernel_cost` |
    | K | draft length of all sequences; 0: a plain step |
    | batch, context | sequences; cached tokens of each |
    | seconds | of the step or round; None: `ratio` is given |
    | ratio | seconds of the round over those of a plain step: accepted length / speedup |
    | name | label in tables |

    ValueError unless exactly one positive figure is given, a ratio only for K >= 1.
    """

    target: ModelShape
    drafter: Drafter
    K: int
    batch: int
    context: int
    seconds: float | None = None
    ratio: float | None = None
    name: str = ""

    def __post_init__(self) -> None:
        given = [value for value in (self.seconds, self.ratio) if value is not None]
        if len(given) != 1 or not 0 < given[0] < 1e6 or (self.ratio is not None and self.K < 1):
            raise ValueError(
                f"cell {self.name!r}: seconds {self.seconds} and ratio {self.ratio} at K {self.K}, "
                "expected one positive figure, a ratio for K >= 1"
            )


def cell_prediction(prices: KernelPrices, cell: SpeedCell) -> float:
    """The figure of the cell, seconds or a ratio, at these prices and their constants."""
    model = kernel_cost(prices, cell.target, cell.drafter, max(cell.K, 1), cell.batch, cell.context)
    if not cell.K:
        return model.baseline
    round_seconds = float(model.overhead + model.draft[cell.K] + model.verify[cell.K])
    return round_seconds if cell.seconds is not None else round_seconds / model.baseline


def cell_errors(prices: KernelPrices, cells: Iterable[SpeedCell]) -> list[float]:
    """predicted / published - 1 of each cell."""
    return [
        cell_prediction(prices, cell) / (cell.ratio if cell.seconds is None else cell.seconds) - 1
        for cell in cells
    ]


def fit_constants(
    prices: KernelPrices, cells: Sequence[SpeedCell], terms: Sequence[str] = ("step", "row")
) -> EngineConstants:
    """The constants >= 0 that minimise the squared relative errors of the cells.

    A cell is linear in the constants: seconds of a round + step + row B (K + 1) + draft K, and
    with a ratio r this less r times the plain step is 0. ValueError for unknown terms, and for
    fewer cells than terms.
    """
    from scipy.optimize import nnls

    if not terms or len(set(terms)) < len(terms) or not set(terms) <= set(TERMS):
        raise ValueError(f"terms are {list(terms)}, expected some of {', '.join(TERMS)}, once each")
    if len(cells) < len(terms):
        raise ValueError(f"{len(cells)} cells for {len(terms)} constants, expected as many or more")
    kernels = replace(prices, constants=None)
    wanted, slopes, scale = [], [], []
    for cell in cells:
        model = kernel_cost(
            kernels, cell.target, cell.drafter, max(cell.K, 1), cell.batch, cell.context
        )
        spent = float(model.draft[cell.K] + model.verify[cell.K])
        slope = np.array([1.0, cell.batch * (cell.K + 1), cell.K])
        plain = np.array([1.0, cell.batch, 0.0])
        ratio = 0.0 if cell.ratio is None else cell.ratio
        wanted.append((cell.seconds or 0.0) - spent + ratio * model.baseline)
        slopes.append(slope - ratio * plain)
        # what a residual is relative to: constant, and linear in the constants
        scale.append((cell.seconds or ratio * model.baseline, ratio * plain))
    chosen = [TERMS.index(name) for name in terms]
    matrix, right = np.array(slopes)[:, chosen], np.array(wanted)
    values = np.zeros(len(chosen))
    for _ in range(PASSES):
        weight = np.array([1 / (fixed + moved[chosen] @ values) for fixed, moved in scale])
        unit = np.abs(matrix * weight[:, None]).max(axis=0)
        unit[unit == 0] = 1.0
        values = nnls(matrix * weight[:, None] / unit, right * weight)[0] / unit
    return EngineConstants(**dict(zip(terms, map(float, values))))

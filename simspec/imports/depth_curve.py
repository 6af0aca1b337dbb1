"""Acceptance by depth of rounds whose drafts end: Kaplan-Meier, with intervals."""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from simspec.imports.depth_counts import DepthCounts
from simspec.numerics.stats import MIN_PROMPTS, bootstrap

GROUPS = 2000
"""Requests above this number are resampled in so many groups of neighbors."""


@dataclass(frozen=True)
class DepthPoint:
    """Acceptance at one depth.

    | field       | meaning                                                        |
    | ----------- | -------------------------------------------------------------- |
    | depth       | 1 .. K                                                         |
    | tried       | rounds that drafted so deep and had all before accepted        |
    | accepted    | those of them whose token was accepted                         |
    | conditional | accepted / tried; NaN: never tried                             |
    | marginal    | product of the conditionals up to here                         |
    | low, high   | interval of the marginal; NaN: there is none                   |
    | interval    | requests: bootstrap over requests; rounds: taken as independent |
    """

    depth: int
    tried: int
    accepted: int
    conditional: float
    marginal: float
    low: float
    high: float
    interval: str


def depth_curve(counts: DepthCounts, level: float = 0.95) -> list[DepthPoint]:
    """Acceptance at each depth with its interval.

    A round whose whole draft is accepted is censored at its length; a rejection is the event.
    S(j) = prod_{i <= j} accepted_i / tried_i (Kaplan, Meier 1958). Intervals resample requests
    where there are at least 8 (BCa); else Greenwood's variance on the scale log(-log S), which
    takes rounds as independent and is too narrow.
    """
    tried, accepted = counts.tried.sum(axis=0), counts.accepted.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        conditional = accepted / np.where(tried > 0, tried, np.nan)
        marginal = np.cumprod(conditional)
        missed = tried - accepted
        variance = np.cumsum(missed / (tried * np.where(accepted > 0, accepted, np.nan)))
    points = []
    for j in range(counts.K):
        bounds = _over_requests(counts, j, level) if marginal[j] > 0 else None
        method = "requests" if bounds else "rounds"
        low, high = bounds or _greenwood(marginal[j], variance[j], level)
        points.append(
            DepthPoint(
                j + 1,
                int(tried[j]),
                int(accepted[j]),
                float(conditional[j]),
                float(marginal[j]),
                low,
                high,
                method,
            )  # fmt: skip
        )
    return points


def _over_requests(counts: DepthCounts, j: int, level: float) -> tuple[float, float] | None:
    if not counts.clusters or len(counts.tried) < MIN_PROMPTS:
        return None
    columns = np.concatenate((counts.accepted[:, : j + 1], counts.tried[:, : j + 1]), axis=1)
    if len(columns) > GROUPS:
        starts = np.linspace(0, len(columns), GROUPS, endpoint=False).astype(np.int64)
        columns = np.add.reduceat(columns, starts, axis=0)
    try:
        with np.errstate(invalid="ignore", divide="ignore"):
            interval = bootstrap(
                columns, lambda t: (t[..., : j + 1] / t[..., j + 1 :]).prod(axis=-1), level
            )
    except ValueError:  # some resample never tried this depth
        return None
    return interval.low, interval.high


def _greenwood(marginal: float, variance: float, level: float) -> tuple[float, float]:
    if not 0 < marginal < 1:
        return float("nan"), float("nan")
    log = np.log(marginal)
    width = ndtri((1 + level) / 2) * np.sqrt(variance) / abs(log)
    return float(np.exp(log * np.exp(width))), float(np.exp(log * np.exp(-width)))

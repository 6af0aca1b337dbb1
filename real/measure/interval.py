"""Confidence intervals of medians, from order statistics alone."""

from collections.abc import Sequence
from functools import lru_cache
from math import exp, inf, lgamma, log

import numpy as np

LEVEL = 0.95


@lru_cache(maxsize=4096)
def interval_rank(n: int, level: float = LEVEL) -> int:
    """Largest r such that the r-th smallest and the r-th largest of n values enclose the median.

    P(they do) = 1 - 2 P(Binomial(n, 1/2) < r) >= level, whatever the distribution; 0 where no r
    does, which at 95% are fewer than six values.
    """
    tail, rank = 0.0, 0
    for below in range(n // 2 + 1):
        tail += exp(lgamma(n + 1) - lgamma(below + 1) - lgamma(n - below + 1) - n * log(2))
        if 2 * tail > 1 - level:
            break
        rank = below + 1
    return rank


def median_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """(median, half-width) of independent values: the farther end of the interval counts.

    The half-width is infinite for too few values. ValueError for none.
    """
    if not len(values):
        raise ValueError("no value to take a median of; expected at least one")
    ordered = np.sort(np.asarray(values, np.float64))
    median, rank = float(np.median(ordered)), interval_rank(len(ordered), level)
    if not rank:
        return median, inf
    return median, max(median - float(ordered[rank - 1]), float(ordered[-rank]) - median)

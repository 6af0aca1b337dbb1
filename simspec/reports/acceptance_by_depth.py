"""Acceptance of drafted tokens by depth, counted over all rows of a recording (n-alpha)."""

import numpy as np
from numpy.typing import NDArray

from simspec.trace.trace import Trace


def by_depth(trace: Trace) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(accepted, tried), float64[S, K]: drafts that begin at each row and are right to depth j.

    n-alpha at depth j is accepted[j] / tried[j]. A row is tried at depth j if its first j - 1
    drafted tokens are right, and neither `depth` nor the sequence ends before j. Each row counts
    once, as if a round began there: the figure holds for no draft length in particular.
    """
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    room = np.minimum(trace.depth, left)
    depth = np.arange(1, trace.K + 1)
    if trace.ratio is None:
        right, reached = trace.run[:, None] >= depth, trace.run[:, None] >= depth - 1
    else:  # acceptance probabilities in place of counts
        right = trace.ratio.astype(np.float64).cumprod(axis=1)
        reached = np.concatenate((np.ones((trace.rows, 1)), right[:, :-1]), axis=1)
    possible = room[:, None] >= depth
    accepted, tried = (
        np.add.reduceat(flags * possible, trace.offset[:-1], axis=0, dtype=np.float64)
        for flags in (right, reached)
    )
    return accepted, tried


def depth_acceptance(trace: Trace) -> tuple[float, NDArray[np.float64]]:
    """(alpha, alphas float64[K]): the share of drafted tokens accepted, at any depth and at each.

    All rows count, given that the tokens before are accepted; NaN where no draft reached the depth.
    """
    accepted, tried = (counts.sum(axis=0) for counts in by_depth(trace))
    with np.errstate(invalid="ignore"):
        return (
            float(accepted.sum() / max(tried.sum(), 1)),
            accepted / np.where(tried > 0, tried, np.nan),
        )

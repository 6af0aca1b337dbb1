"""Acceptance by depth and rank, counted on a recording."""

from collections.abc import Sequence

import numpy as np

from simspec.trace import Trace, TraceError
from simspec.tree import MAX_RANKS, TreeError


def check_exact(trace: Trace) -> None:
    """TraceError for a trace of the rejection rule, on which no drawn tree is replayed.

    There a node's second child x is tried with p' = norm(max(0, p - q)) against q without the
    first: its chance needs the whole p and q, of which `ratio` holds one quotient.
    """
    if trace.ratio is not None:
        raise TraceError(
            "this trace is of the rejection rule: its ratio is the chance of a single child, "
            "that of a sibling also depends on those rejected before. "
            "Use a greedy or coupled trace, or a dynamic tree or beams, whose nodes are not drawn"
        )


def rank_acceptance(
    trace: Trace,
    R: int = 16,
    indices: Sequence[int] | np.ndarray | None = None,
    reached: bool = True,
) -> np.ndarray:
    """float64[K, R]: share of rows whose token at depth d + 1 has rank r, of rows where a tree
    reaches that depth.

    indices: the sequences to count, default all. reached: only rows whose earlier tokens all had a
    rank below R, where a node of that depth is tried at all; otherwise all rows, a head's accuracy
    by itself. 0 where there is no such row. TraceError without ranks.
    """
    check_exact(trace)
    if trace.rank is None:
        raise TraceError("this trace records no rank, which trees need: record it again")
    if not 1 <= R <= MAX_RANKS:
        raise TreeError(f"R is {R}, expected 1 to {MAX_RANKS} ranks")
    rank = trace.rank
    cap, left = draft_room(trace)
    counted = np.arange(trace.K) < np.minimum(cap, left)[:, None]
    if indices is not None:
        chosen = np.zeros(trace.sequences, bool)
        chosen[np.asarray(indices)] = True
        counted &= np.repeat(chosen, np.diff(trace.offset))[:, None]
    if reached:
        counted[:, 1:] &= np.logical_and.accumulate(rank < R, axis=1)[:, :-1]
    counts = np.stack(
        [np.bincount(rank[counted[:, j], j], minlength=256)[:R] for j in range(trace.K)]
    )
    shares: np.ndarray = counts / np.maximum(counted.sum(axis=0), 1)[:, None]
    return shares


def draft_room(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """(cap, left), int64[N]: the deepest tree at each row, min(K, budget left - 1), and the tokens
    left.

    A row of depth 0 has a cap of 0: the drafter offers nothing there, as EAGLE after a prompt of
    one token.
    """
    length = np.diff(trace.offset)
    position = np.arange(trace.rows) - np.repeat(trace.offset[:-1], length)
    cap = np.minimum(trace.K, np.repeat(trace.budget, length) - position - 1)
    return np.where(trace.depth > 0, cap, 0), np.repeat(length, length) - position

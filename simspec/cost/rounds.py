"""Seconds of a round, and the drafter's backlog after it."""

from typing import NamedTuple

import numpy as np

from simspec.numerics.compile import cached_njit, inner_njit

# mypy: disable-error-code="no-untyped-def"


class CostTables(NamedTuple):
    """The seconds of a CostModel as compiled loops take them.

    Unpack it before a loop: numba counts a reference at each access to an array within a tuple.
    """

    draft: np.ndarray
    verify: np.ndarray
    catch_up: np.ndarray
    overhead: float


@inner_njit
def round_seconds(draft, verify, catch_up, overhead, computed, drafted, backlog):
    """Seconds of one round: overhead + draft[computed] + verify[drafted] + catch_up[min(backlog,
    B)] if computed >= 1.
    """
    # One lookup in every case: after a branch numba would count references to the array, which
    # costs more than the round.
    rows = min(backlog, catch_up.shape[0] - 1) if computed > 0 else 0
    seconds = overhead + draft[computed] + verify[drafted] + catch_up[rows]
    return seconds


@inner_njit
def next_backlog(backlog, computed, accepted):
    """Rows that the drafter's cache lags by after a round.

    A round without drafting leaves its input unread: one more. Otherwise the drafter has read the
    input and all drafts but the last computed one, so the backlog is 1 exactly when that last one
    was accepted.
    """
    if computed == 0:
        return backlog + 1
    return 1 if accepted == computed else 0


@cached_njit
def chain_seconds(tables, offset, computed, drafted, accepted):
    """float64[R]: seconds of rounds of chains, the backlog starting at 0 in each sequence."""
    draft, verify, catch_up, overhead = tables
    seconds = np.empty(computed.shape[0])
    for s in range(offset.shape[0] - 1):
        backlog = 0
        for r in range(offset[s], offset[s + 1]):
            seconds[r] = round_seconds(
                draft, verify, catch_up, overhead, computed[r], drafted[r], backlog
            )
            backlog = next_backlog(backlog, computed[r], accepted[r])
    return seconds


@cached_njit
def levels_seconds(tables, offset, computed, drafted, after):
    """float64[R]: seconds of rounds of trees without their further rows; `after` is the backlog
    after each round.
    """
    draft, verify, catch_up, overhead = tables
    seconds = np.empty(computed.shape[0])
    for s in range(offset.shape[0] - 1):
        backlog = 0
        for r in range(offset[s], offset[s + 1]):
            seconds[r] = round_seconds(
                draft, verify, catch_up, overhead, computed[r], drafted[r], backlog
            )
            backlog = after[r] if computed[r] > 0 else backlog + 1
    return seconds

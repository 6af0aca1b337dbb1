"""Seconds of a round, and the drafter's backlog after it."""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from simspec.numerics.compile import cached_njit

# mypy: disable-error-code="no-untyped-def"


class CostTables(NamedTuple):
    """The seconds of a CostModel as compiled loops take them.

    Unpack it before a loop: numba counts a reference at each access to an array within a tuple.
    """

    draft: np.ndarray
    verify: np.ndarray
    catch_up: np.ndarray
    overhead: float


@njit
def round_seconds(draft, verify, catch_up, overhead, computed, drafted, backlog):
    """Seconds of one round: overhead + draft[computed] + verify[drafted] + catch_up[min(backlog,
    B)] if computed >= 1.
    """
    # One lookup in every case: after a branch numba would count references to the array, which
    # costs more than the round.
    rows = min(backlog, catch_up.shape[0] - 1) if computed > 0 else 0
    seconds = overhead + draft[computed] + verify[drafted] + catch_up[rows]
    return seconds


@njit
def next_backlog(backlog, computed, accepted):
    """Rows that the drafter's cache lags by after a round.

    A round without drafting leaves its input unread: one more. Otherwise the drafter has read the
    input and all drafts but the last computed one, so the backlog is 1 exactly when that last one
    was accepted.
    """
    if computed == 0:
        return backlog + 1
    return 1 if accepted == computed else 0


def backlogs(rounds: Any, after: Any = None) -> np.ndarray:
    """int64[R]: the drafter's backlog before each round of a `Rounds`, 0 where a sequence starts.

    after int64[R]: the backlog after each round that drafts; default that of chains, as
    `next_backlog` has it.
    """
    after = rounds.accepted == rounds.computed if after is None else after
    held = rounds.offset, rounds.computed, np.asarray(after, np.int64)
    # contiguous: compiled code that is cached has one signature
    found: np.ndarray = _backlogs(*map(np.ascontiguousarray, held))
    return found


@cached_njit
def _backlogs(offset, computed, after):
    backlogs = np.zeros(computed.shape[0], np.int64)
    for s in range(offset.shape[0] - 1):
        backlog = 0
        for r in range(offset[s], offset[s + 1]):
            backlogs[r] = backlog
            backlog = after[r] if computed[r] > 0 else backlog + 1
    return backlogs

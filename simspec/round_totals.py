"""Totals of rounds by group of sequences, in one compiled pass."""

# mypy: disable-error-code="no-untyped-def"

from typing import NamedTuple

import numpy as np

from simspec.compile_cache import cached_njit
from simspec.rounds import Rounds
from simspec.trace import Trace


class Totals(NamedTuple):
    """Sums over rounds by group of sequences; `add_rounds` adds to them in place.

    | field    | dtype, shape    | meaning                                                        |
    | -------- | --------------- | -------------------------------------------------------------- |
    | counts   | int64[G, 8]     | sequences, tokens, rounds; tokens computed, drafted, paid for, |
    |          |                 | accepted; rounds cut                                           |
    | seconds  | float64[G]      | seconds, added in the order of the rounds                      |
    | tried    | int64[G, K + 1] | rounds by the last depth that they tried                       |
    | accepted | int64[G, K + 1] | rounds by accepted tokens                                      |

    Depth j is tried iff drafted >= j and accepted >= j - 1. Of a tree computed counts the levels,
    of which at most `computed` are tried, and a round pays for its nodes, or levels where these are
    more. Cut are rounds whose draft reached depth[row] while K and budget allowed more.
    """

    counts: np.ndarray
    seconds: np.ndarray
    tried: np.ndarray
    accepted: np.ndarray

    @classmethod
    def zero(cls, groups: int, K: int) -> "Totals":
        """No rounds, of a recording of depth K."""
        histograms = (np.zeros((groups, K + 1), np.int64) for _ in range(2))
        return cls(np.zeros((groups, 8), np.int64), np.zeros(groups), *histograms)

    def by_depth(self) -> tuple[np.ndarray, np.ndarray]:
        """(tried, accepted), int64[G, K]: rounds that tried depths 1 .. K, and accepted them."""
        return _at_least(self.tried), _at_least(self.accepted)


def add_rounds(
    totals: Totals, rounds: Rounds, trace: Trace, group: np.ndarray, K: int, seconds: np.ndarray
) -> None:
    """Adds the rounds of a trace; group int64[S] numbers each sequence's group.

    K: the policy's longest draft; seconds, float64[R], of each round. ValueError for rounds that
    are not of this trace.
    """
    columns = rounds.row, rounds.computed, rounds.drafted, rounds.accepted, seconds
    counted = {len(column) for column in columns} == {int(rounds.offset[-1])}
    ordered = rounds.offset[0] == 0 and (np.diff(rounds.offset) >= 0).all()
    recording = trace.offset, trace.budget, trace.depth
    if not (counted and ordered) or not _add(
        recording, group, rounds.offset, columns, K, tuple(totals)
    ):
        raise ValueError(
            "the rounds do not lie in this trace's sequences: pass the trace they were made on"
        )


def _at_least(histogram: np.ndarray) -> np.ndarray:
    counts: np.ndarray = histogram[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
    return counts


@cached_njit
def _add(recording, group, rounds_of, columns, K, totals):
    """Adds all rounds to the totals; False where one does not lie in its sequence, or goes deeper
    than the trace.
    """
    offset, budget, depth = recording
    row, computed, drafted, accepted, seconds = columns
    counts, sums, tried, taken = totals
    deepest = tried.shape[1] - 1
    for s in range(offset.shape[0] - 1):
        g, first, end = group[s], offset[s], offset[s + 1]
        time = sums[g]
        for r in range(rounds_of[s], rounds_of[s + 1]):
            t, c, d, a = row[r], computed[r], drafted[r], accepted[r]
            depth_tried = min(min(c, d), a + 1)
            if t < first or t >= end or a < 0 or a > deepest or not 0 <= depth_tried <= deepest:
                return False
            counts[g, 3] += c
            counts[g, 4] += d
            counts[g, 5] += max(c, d)
            counts[g, 6] += a
            time += seconds[r]
            limit = np.int64(depth[t])
            if c == limit and limit < min(K, budget[s] - (t - first) - 1):
                counts[g, 7] += 1
            tried[g, depth_tried] += 1
            taken[g, a] += 1
        counts[g, 0] += 1
        counts[g, 1] += end - first
        counts[g, 2] += rounds_of[s + 1] - rounds_of[s]
        sums[g] = time
    return True

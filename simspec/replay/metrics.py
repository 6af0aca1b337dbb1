"""Metrics: totals and rates of a set of rounds, and their seconds at replicates of costs."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.numerics.compile import cached_njit
from simspec.trace.trace import Rounds, Trace

# mypy: disable-error-code="no-untyped-def"


class Totals(NamedTuple):
    """Sums over rounds by group of sequences; `add_rounds` adds to them in place.

    Depth j is tried iff drafted >= j and accepted >= j - 1. Of a tree computed counts the levels,
    of which at most `computed` are tried, and a round pays for its nodes, or levels where these are
    more. Cut are rounds whose draft reached depth[row] while K and budget allowed more.
    """

    # int64[G, 8]: sequences, tokens, rounds; tokens computed, drafted, paid for, accepted; rounds
    # cut
    counts: np.ndarray
    seconds: np.ndarray  # float64[G]: seconds, added in the order of the rounds
    tried: np.ndarray  # int64[G, K + 1]: rounds by the last depth that they tried
    accepted: np.ndarray  # int64[G, K + 1]: rounds by accepted tokens

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


@dataclass(frozen=True)
class Metrics:
    """Totals and rates of a set of sequences.

    | field                       | unit, formula                                                |
    | --------------------------- | ------------------------------------------------------------ |
    | sequences, rounds           | counts; a round is one target pass                           |
    | tokens                      | L, output tokens                                             |
    | computed, drafted, accepted | draft tokens computed, submitted, accepted                   |
    | v_d                         | accepted / computed (EESD Eq. 11); NaN if none computed      |
    | r_d                         | accepted / tokens (EESD Eq. 12)                              |
    | hm                          | 2 v_d r_d / (v_d + r_d), a fraction                          |
    | acceptance_rate             | accepted / drafted, vLLM's draft acceptance rate; NaN: none  |
    | committed_per_round         | tokens / rounds (EAGLE's tau)                                |
    | accept_by_depth             | (float,) [K]: n-alpha, acceptance by depth; NaN: never tried |
    | seconds                     | modelled time of all rounds                                  |
    | speedup                     | tokens * baseline / seconds                                  |
    | cut_share                   | share of rounds that depth may have cut short                |

    accept_by_depth counts rounds that drafted the depth and accepted all before; of trees, rounds
    as deep, accepted if one of the nodes was. computed counts a tree's levels; v_d and hm
    count its nodes, or its levels in rounds where these are more. v_d is acceptance_rate unless
    computed tokens were dropped. hm is 0 if nothing was accepted. cut_share counts rounds whose
    draft reached depth[row] while K and budget allowed more: an upper bound.
    """

    sequences: int
    rounds: int
    tokens: int
    computed: int
    drafted: int
    accepted: int
    v_d: float
    r_d: float
    hm: float
    acceptance_rate: float
    committed_per_round: float
    accept_by_depth: tuple[float, ...]
    seconds: float
    speedup: float
    cut_share: float


def summary(
    rounds: Rounds,
    trace: Trace,
    cost: CostModel,
    groups: Sequence[Hashable] | None = None,
    K: int | None = None,
    seconds: np.ndarray | None = None,
) -> Any:
    """Metrics of all sequences, or {group: Metrics} where groups has one label per sequence.

    K: the policy's longest draft (default the trace's), for cut_share. For a policy that reads
    features pass cost.reading(policy.reads). For a tree policy pass K = policy.longest(trace.K) and
    seconds, float64[R], from `tree_replay.tree_seconds`. ValueError if the rounds are not of this
    trace's sequences, or cost is too short.
    """
    if groups is None:
        return grouped_summary(rounds, trace, cost, [None] * trace.sequences, K, seconds)[None]
    return grouped_summary(rounds, trace, cost, groups, K, seconds)


def grouped_summary(
    rounds: Rounds,
    trace: Trace,
    cost: CostModel,
    groups: Sequence[Hashable],
    K: int | None = None,
    seconds: np.ndarray | None = None,
) -> dict[Any, Metrics]:
    """{group: Metrics} in order of appearance; arguments and errors as for `summary`."""
    if len(rounds.offset) != trace.sequences + 1 or not np.array_equal(
        rounds.row[rounds.offset[:-1]], trace.offset[:-1]
    ):
        raise ValueError(
            "the rounds do not start where this trace's sequences do: pass the trace they were "
            "made on"
        )
    if len(groups) != trace.sequences:
        raise ValueError(
            f"groups has {len(groups)} labels, the trace {trace.sequences} sequences: give one each"
        )
    index = {name: g for g, name in enumerate(dict.fromkeys(groups))}
    group = np.array([index[label] for label in groups])
    seconds = cost.seconds(rounds) if seconds is None else np.asarray(seconds, np.float64)
    totals = Totals.zero(len(index), trace.K)
    add_rounds(totals, rounds, trace, group, trace.K if K is None else K, seconds)
    return rates(totals, index, cost)


def rates(totals: Totals, index: Mapping[Any, int], cost: CostModel) -> dict[Any, Metrics]:
    """{group: Metrics} of the totals of groups; index numbers them, cost gives the baseline."""
    tried, taken = totals.by_depth()
    return {
        name: _rates(totals.counts[g], totals.seconds[g], tried[g], taken[g], cost)
        for name, g in index.items()
    }


def _rates(
    counts: np.ndarray, seconds: float, tried: np.ndarray, taken: np.ndarray, cost: CostModel
) -> Metrics:
    sequences, L, count, computed, d, paid, a, cut = map(int, counts)
    return Metrics(
        sequences=sequences,
        rounds=count,
        tokens=L,
        computed=computed,
        drafted=d,
        accepted=a,
        v_d=a / paid if paid else float("nan"),
        r_d=a / L,
        hm=2 * a / (paid + L),
        acceptance_rate=a / d if d else float("nan"),
        committed_per_round=L / count,
        accept_by_depth=tuple(float(y / n) if n else float("nan") for n, y in zip(tried, taken)),
        seconds=float(seconds),
        speedup=float(L * cost.baseline / seconds) if seconds > 0 else float("inf"),
        cut_share=cut / count,
    )


Array = NDArray[np.float64]
Integers = NDArray[np.int64]


def replicate_seconds(
    rounds: Rounds, cost: CostModel, tree: tuple[Integers, Integers] | None = None
) -> Array:
    """float64[S, R]: seconds of each sequence's rounds at each of the cost's replicates.

    Equal to sums of `CostModel.seconds`, or `seconds_tree` for tree = (rows, backlog), which are
    linear in the costs. One count prices all replicates. ValueError as there.
    """
    sequences = len(rounds.offset) - 1
    if not cost.replicates:
        return np.empty((sequences, 0))
    prices = np.stack([_prices(replicate) for replicate in cost.replicates], axis=-1)
    return _counts(rounds, cost, tree) @ prices


def _prices(cost: CostModel) -> Array:
    return np.concatenate((cost.draft, cost.verify, cost.catch_up, [cost.overhead, cost.node]))


def _counts(rounds: Rounds, cost: CostModel, tree: tuple[Integers, Integers] | None) -> Array:
    """float64[S, parts]: how often each sequence pays each price of `_prices`."""
    per_sequence, drafts = np.diff(rounds.offset), rounds.computed > 0
    sequences, sequence = len(per_sequence), np.repeat(np.arange(len(per_sequence)), per_sequence)
    after = (rounds.accepted == rounds.computed).astype(np.int64) if tree is None else tree[1]
    backlog = np.minimum(_backlog(rounds, drafts, after), len(cost.catch_up) - 1)
    further = np.zeros(len(rounds)) if tree is None else np.maximum(tree[0] - rounds.computed, 0)
    columns = [
        np.bincount(sequence * size + paid, minlength=sequences * size).reshape(sequences, size)
        for size, paid in (
            (len(cost.draft), rounds.computed),
            (len(cost.verify), rounds.drafted),
            (len(cost.catch_up), np.where(drafts, backlog, 0)),
        )
    ]
    nodes = np.bincount(sequence, further, sequences)
    return np.column_stack((*columns, per_sequence, nodes)).astype(np.float64)


def _backlog(rounds: Rounds, drafts: NDArray[np.bool_], after: Integers) -> Integers:
    """int64[R]: the drafter's backlog before each round, see `round_cost.next_backlog`."""
    index = np.arange(len(rounds))
    first = np.repeat(rounds.offset[:-1], np.diff(rounds.offset))
    drafted = np.maximum.accumulate(np.where(drafts, index, -1))
    last = np.concatenate(([-1], drafted[:-1]))
    found: Integers = np.where(last >= first, index - last - 1 + after[last], index - first)
    return found

"""Metrics: totals and rates of a set of rounds, and their seconds at replicates of costs."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.cost.rounds import backlogs
from simspec.numerics.compile import cached_njit
from simspec.trace.trace import Rounds, Trace

# mypy: disable-error-code="no-untyped-def"


@cached_njit
def _add(recording, group, rounds_of, columns, K, totals):
    """Adds all rounds to sums by group of sequences; False where one does not lie in its sequence,
    or goes deeper than the trace.

    | totals | sums |
    | --- | --- |
    | counts int64[G, 8] | sequences, tokens, rounds; tokens computed, drafted, paid for, \
accepted; rounds cut |
    | sums float64[G] | seconds, in the order of the rounds |
    | tried, taken int64[G, K + 1] | rounds by the last depth that they tried; by accepted tokens |

    Depth j is tried iff drafted >= j and accepted >= j - 1. Of a tree computed counts the levels,
    of which at most `computed` are tried, and a round pays for its nodes, or levels where these are
    more. Cut are rounds whose draft reached depth[row] while K and budget allowed more.
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
    seconds, float64[R], from `CostModel.seconds_tree`. ValueError if the rounds are not of this
    trace's sequences, or cost is too short.
    """
    labels = [None] * trace.sequences if groups is None else groups
    if len(rounds.offset) != trace.sequences + 1 or not np.array_equal(
        rounds.row[rounds.offset[:-1]], trace.offset[:-1]
    ):
        raise ValueError(
            "the rounds do not start where this trace's sequences do: pass the trace they were "
            "made on"
        )
    if len(labels) != trace.sequences:
        raise ValueError(
            f"groups has {len(labels)} labels, the trace {trace.sequences} sequences: give one each"
        )
    index = {name: g for g, name in enumerate(dict.fromkeys(labels))}
    group = np.array([index[label] for label in labels])
    seconds = cost.seconds(rounds) if seconds is None else np.asarray(seconds, np.float64)
    columns = rounds.row, rounds.computed, rounds.drafted, rounds.accepted, seconds
    counted = {len(column) for column in columns} == {int(rounds.offset[-1])}
    ordered = rounds.offset[0] == 0 and (np.diff(rounds.offset) >= 0).all()
    recording, longest = (trace.offset, trace.budget, trace.depth), trace.K if K is None else K
    counts, sums = np.zeros((len(index), 8), np.int64), np.zeros(len(index))
    tried, taken = (np.zeros((len(index), trace.K + 1), np.int64) for _ in range(2))
    totals = counts, sums, tried, taken
    if not (counted and ordered) or not _add(
        recording, group, rounds.offset, columns, longest, totals
    ):
        raise ValueError(
            "the rounds do not lie in this trace's sequences: pass the trace they were made on"
        )
    # rounds that tried depths 1 .. K, and accepted them
    tried, taken = (of[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:] for of in (tried, taken))
    found = {
        name: _rates(counts[g], sums[g], tried[g], taken[g], cost) for name, g in index.items()
    }
    return found[None] if groups is None else found


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


def by_prompt(values: Any, rounds: Rounds) -> Array:
    """float64[S]: sums over the rounds of each sequence, in their order."""
    counts = np.diff(rounds.offset)
    sequence = np.repeat(np.arange(len(counts)), counts)
    return np.bincount(sequence, values, len(counts)).astype(np.float64)


def replicate_seconds(
    rounds: Rounds, cost: CostModel, tree: tuple[Integers, Integers] | None = None
) -> Array:
    """float64[S, R]: seconds of each sequence's rounds at each of the cost's replicates.

    Equal to sums of `CostModel.seconds`, or `seconds_tree` for tree = (rows, backlog), which are
    linear in the costs. One count prices all replicates. ValueError as there.
    """
    counts = np.diff(rounds.offset)
    if not cost.replicates:
        return np.empty((len(counts), 0))
    backlog = backlogs(rounds, None if tree is None else tree[1])
    further = 0 if tree is None else np.maximum(tree[0] - rounds.computed, 0)
    sequence = np.repeat(np.arange(len(counts)), counts)
    columns = rounds.computed, rounds.drafted, backlog, further
    return part_counts(cost, len(counts), sequence, *columns) @ part_prices(cost)[:, 1:]


def part_prices(cost: CostModel) -> Array:
    """float64[parts, 1 + R]: draft, verify, catch_up, overhead and node, as measured and at the R
    replicates."""
    return np.stack([
        np.concatenate((each.draft, each.verify, each.catch_up, [each.overhead, each.node]))
        for each in (cost, *cost.replicates)
    ], axis=-1)  # fmt: skip


def part_counts(
    cost: CostModel, sequences: int, sequence: Integers, computed: Any, drafted: Any, backlog: Any,
    further: Any = 0,
) -> Array:  # fmt: skip
    """float64[S, parts]: how often each sequence pays each price of `part_prices`.

    sequence, computed, drafted, backlog int64[R] of each round; further: rows of a tree's passes
    beyond the first of each.
    """
    rows = np.where(computed > 0, np.minimum(backlog, len(cost.catch_up) - 1), 0)
    paid = (len(cost.draft), computed), (len(cost.verify), drafted), (len(cost.catch_up), rows)
    columns = [
        np.bincount(sequence * size + of, minlength=sequences * size).reshape(sequences, size)
        for size, of in paid
    ]
    count = np.bincount(sequence, minlength=sequences)
    nodes = np.bincount(sequence, np.broadcast_to(further, len(sequence)), sequences)
    return np.column_stack((*columns, count, nodes)).astype(np.float64)

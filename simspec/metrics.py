"""What a set of rounds amounts to."""

from dataclasses import dataclass

import numpy as np

from simspec.cost import CostModel
from simspec.rounds import Rounds
from simspec.trace import Trace


@dataclass(frozen=True)
class Metrics:
    """Totals and rates of a set of sequences.

    | field | unit, formula |
    | --- | --- |
    | sequences, rounds | counts; a round is one target pass |
    | tokens | L, output tokens |
    | computed, drafted, accepted | draft tokens paid for (of trees: the drafter's passes), submitted, emitted |
    | v_d | accepted / drafted (EESD Eq. 11); NaN if nothing was drafted |
    | r_d | accepted / tokens (EESD Eq. 12) |
    | hm | 2 v_d r_d / (v_d + r_d) = 2 accepted / (drafted + tokens); 0 if nothing was accepted |
    | committed_per_round | tokens / rounds (EAGLE's tau) |
    | accept_by_depth | (float,) [K]: n-alpha: acceptance at depth n where drafted and all before accepted; NaN: never |
    |  | (of trees: of the rounds of so many levels, the share in which one of the nodes was right) |
    | seconds | modelled time of all rounds |
    | speedup | tokens * baseline / seconds |
    | cut_share | share of rounds whose draft reached depth[row] while K and budget allowed more: no fewer than depth cut short |
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
    committed_per_round: float
    accept_by_depth: tuple
    seconds: float
    speedup: float
    cut_share: float


def summary(
    rounds: Rounds, trace: Trace, cost: CostModel, groups=None, K: int | None = None, seconds=None
) -> Metrics | dict:
    """Metrics of all sequences, or {group: Metrics} when groups holds one label per sequence, in
    order of appearance.

    K is the policy's longest draft (default the trace's), for cut_share: a round stopped by it was
    not cut by depth. For a policy that reads features pass cost.reading(policy.reads); of a tree
    policy, K = policy.longest(trace.K) and seconds, float64[R], from `tree_replay.tree_seconds`.
    ValueError if the rounds are not of this trace's sequences, or cost is too short.
    """
    if len(rounds.offset) != trace.sequences + 1 or not np.array_equal(
        rounds.row[rounds.offset[:-1]], trace.offset[:-1]
    ):
        raise ValueError(
            "the rounds do not start where this trace's sequences do: pass the trace they were "
            "made on"
        )
    if groups is not None and len(groups) != trace.sequences:
        raise ValueError(
            f"groups has {len(groups)} labels, the trace {trace.sequences} sequences: give one each"
        )
    labels = [None] * trace.sequences if groups is None else list(groups)
    index = {name: g for g, name in enumerate(dict.fromkeys(labels))}
    names, group = list(index), np.array([index[label] for label in labels])
    count, depths = len(names), trace.K
    of_round = np.repeat(group, np.diff(rounds.offset))

    def total(values):
        return np.bincount(of_round, weights=values, minlength=count)

    seconds = total(cost.seconds(rounds) if seconds is None else seconds)
    number, computed, drafted, accepted = (
        np.rint(total(values)).astype(np.int64)
        for values in (np.ones(len(rounds)), rounds.computed, rounds.drafted, rounds.accepted)
    )
    tokens = np.rint(np.bincount(group, weights=np.diff(trace.offset), minlength=count)).astype(
        np.int64
    )
    cut = total(_cut(rounds, trace, trace.K if K is None else K))
    reached, taken = _by_depth(rounds, of_round, count, depths)
    found = {}
    for g, name in enumerate(names):
        L, d, a = int(tokens[g]), int(drafted[g]), int(accepted[g])
        found[name] = Metrics(
            sequences=int((group == g).sum()),
            rounds=int(number[g]),
            tokens=L,
            computed=int(computed[g]),
            drafted=d,
            accepted=a,
            v_d=a / d if d else float("nan"),
            r_d=a / L,
            hm=2 * a / (d + L),
            committed_per_round=L / int(number[g]),
            accept_by_depth=tuple(
                float(y / n) if n else float("nan") for n, y in zip(reached[g], taken[g])
            ),
            seconds=float(seconds[g]),
            speedup=float(L * cost.baseline / seconds[g]) if seconds[g] > 0 else float("inf"),
            cut_share=float(cut[g] / number[g]),
        )
    return found[None] if groups is None else found


def _cut(rounds, trace, K):
    sequence = np.repeat(np.arange(trace.sequences), np.diff(rounds.offset))
    left = trace.budget[sequence] - (rounds.row - trace.offset[sequence])
    depth = trace.depth[rounds.row]
    return (rounds.computed == depth) & (depth < np.minimum(K, left - 1))


def _by_depth(rounds, of_round, count, K):
    # Depth j (from 1) is tried in a round iff drafted >= j and accepted >= j - 1: that is j <=
    # min(drafted, accepted + 1). Of a tree computed counts the levels.
    def at_least(values):
        histogram = np.bincount(of_round * (K + 1) + values, minlength=count * (K + 1)).reshape(
            count, K + 1
        )
        return histogram[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]

    reach = np.minimum(rounds.computed, rounds.drafted)
    return at_least(np.minimum(reach, rounds.accepted + 1)), at_least(rounds.accepted)

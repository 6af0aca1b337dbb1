"""Metrics: totals and rates of a set of rounds."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simspec.cost import CostModel
from simspec.round_totals import Totals, add_rounds
from simspec.rounds import Rounds
from simspec.trace import Trace


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
    of so many levels, accepted if one of the nodes was. computed counts a tree's levels; v_d and hm
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

"""A clairvoyant that looks one round ahead."""

import numpy as np

from simspec.cost.model import CostModel
from simspec.cost.rounds import CostTables
from simspec.numerics.compile import cached_njit
from simspec.policy.policy import Array, Policy
from simspec.policy.schedule import empty_schedule, scheduled_policy
from simspec.policy_kind import DeferredPolicy, PolicyKind
from simspec.trace.trace import Trace


@cached_njit
def _solve(
    offset: Array, budget: Array, depth: Array, run: Array, K: int, tables: CostTables, plan: Array
) -> None:
    draft, verify, catch_up, overhead = tables
    for s in range(budget.shape[0]):
        n = offset[s + 1] - offset[s]
        for pos in range(n):
            t = offset[s] + pos
            cap = min(K, budget[s] - pos - 1, np.int64(depth[t]))
            for b in range(catch_up.shape[0]):
                tokens, seconds = 1, overhead + verify[0]
                for k in range(1, cap + 1):
                    more = min(min(k, np.int64(run[t])) + 1, n - pos)  # type: ignore[operator]
                    longer = overhead + catch_up[b] + draft[k] + verify[k]
                    if more * seconds > tokens * longer:
                        tokens, seconds = more, longer
                        plan[t, b] = k


def _plan(trace: Trace, cost: CostModel) -> Policy:
    plan = empty_schedule(trace, cost)
    _solve(trace.offset, trace.budget, trace.depth, trace.run, trace.K, cost.tables, plan)
    return scheduled_policy("greedy_oracle", trace, plan)


greedy_oracle = DeferredPolicy("greedy_oracle", _plan, clairvoyant=True)
"""The k of most committed tokens per second of this round alone; not an upper bound.

argmax over 0 <= k <= cap of min(min(k, run[t]) + 1, tokens left) / (overhead + catch_up[b] if k +
draft[k] + verify[k]). Ties go to the shorter draft. It knows the future and still loses to
`oracle`, since a round's rate ignores where the round ends. It bounds what a rule of one round
could gain from perfect knowledge. PolicyError as `oracle`.
"""


POLICIES = (
    PolicyKind(
        greedy_oracle, "bounds", "ours", "the recorded tokens",
        "the best throughput of each round, knowing the future", examples=("greedy_oracle",),
    ),
)  # fmt: skip

"""The clairvoyant schedule of least time: a bound on what any policy can reach."""

import numpy as np

from simspec.cost.model import CostModel
from simspec.cost.rounds import CostTables, next_backlog
from simspec.numerics.compile import cached_njit
from simspec.policy.policy import Array, Policy
from simspec.policy.schedule import empty_schedule, scheduled_policy
from simspec.policy_kind import DeferredPolicy, PolicyKind
from simspec.trace.trace import Trace


@cached_njit
def _solve(
    offset: Array,
    budget: Array,
    depth: Array,
    run: Array,
    K: int,
    tables: CostTables,
    plan: Array,
    value: Array,
) -> None:
    draft, verify, catch_up, overhead = tables
    width = catch_up.shape[0]
    for s in range(budget.shape[0]):
        n = offset[s + 1] - offset[s]
        value[n] = 0.0
        for pos in range(n - 1, -1, -1):
            t = offset[s] + pos
            cap = min(K, budget[s] - pos - 1, np.int64(depth[t]))
            for b in range(width):
                best = overhead + verify[0] + value[pos + 1, min(b + 1, width - 1)]
                choice = 0
                for k in range(1, cap + 1):
                    for dropped in range(2):
                        accepted = min(k - dropped, np.int64(run[t]))
                        reached = min(pos + accepted + 1, n)  # type: ignore[operator]
                        follows = value[reached, min(next_backlog(b, k, accepted), width - 1)]
                        seconds = overhead + catch_up[b] + draft[k] + verify[k - dropped] + follows
                        if seconds < best:
                            best = seconds
                            choice = -k if dropped else k
                value[pos, b] = best
                plan[t, b] = choice


def _plan(trace: Trace, cost: CostModel) -> Policy:
    plan = empty_schedule(trace, cost)
    value = np.zeros((int(np.diff(trace.offset).max()) + 1, plan.shape[1]))
    _solve(trace.offset, trace.budget, trace.depth, trace.run, trace.K, cost.tables, plan, value)
    return scheduled_policy("oracle", trace, plan)


oracle = DeferredPolicy("oracle", _plan, clairvoyant=True)
"""The schedule of least modelled time, by dynamic programming over (row t, backlog b).

V[t, b] = min of
- overhead + verify[0] + V[t+1, min(b+1, B)]
- overhead + catch_up[b] + draft[k] + verify[k-d] + V[min(t+a+1, n), backlog'], 1 <= k <= cap, d in
{0, 1}

with a = min(k-d, run[t]), V[n, .] = 0 and cap = min(K, budget - pos - 1, depth[t]). Ties go to the
shorter draft. d = 1 drops the last computed token, as a policy may. It pays where a backlog costs
more than a draft step; without it the bound could be beaten. PolicyError if the cost model is
shorter than K.
"""


POLICIES = (
    PolicyKind(
        oracle, "bounds", "ours", "the recorded tokens",
        "the schedule of least time, knowing the future", examples=("oracle",),
    ),
)  # fmt: skip

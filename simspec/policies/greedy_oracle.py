"""A clairvoyant that looks one round ahead."""

import numpy as np

from simspec.compile_cache import cached_njit
from simspec.cost import CostModel
from simspec.deferred_policy import DeferredPolicy
from simspec.policy import Policy
from simspec.schedule import empty_schedule, scheduled_policy
from simspec.trace import Trace


@cached_njit
def _solve_greedily(offset, budget, depth, run, K, draft, verify, catch_up, overhead, plan):
    for s in range(budget.shape[0]):
        n = offset[s + 1] - offset[s]
        for pos in range(n):
            t = offset[s] + pos
            cap = min(K, budget[s] - pos - 1, np.int64(depth[t]))
            for b in range(catch_up.shape[0]):
                tokens, seconds = 1, overhead + verify[0]
                for k in range(1, cap + 1):
                    more = min(min(k, np.int64(run[t])) + 1, n - pos)
                    longer = overhead + catch_up[b] + draft[k] + verify[k]
                    if more * seconds > tokens * longer:
                        tokens, seconds = more, longer
                        plan[t, b] = k


def _greedy_oracle(trace: Trace, cost: CostModel) -> Policy:
    """A clairvoyant that sees one round far: the k of most committed tokens per second of this round alone. No upper bound.

    argmax over 0 <= k <= cap of min(min(k, run[t]) + 1, text left) / (overhead + catch_up[b] if k + draft[k] + verify[k]); ties go
    to the shorter draft. It knows the future and still loses to `oracle`, since a round's rate says nothing about where the round
    ends: what a rule of one round could gain from perfect knowledge. Carried and refused as `oracle` is.
    """
    plan = empty_schedule(trace, cost)
    _solve_greedily(
        trace.offset, trace.budget, trace.depth, trace.run, trace.K,
        cost.draft, cost.verify, cost.catch_up, cost.overhead, plan,
    )  # fmt: skip
    return scheduled_policy("greedy_oracle", trace, plan)


greedy_oracle = DeferredPolicy("greedy_oracle", _greedy_oracle, clairvoyant=True)
"""A clairvoyant that looks one round ahead."""

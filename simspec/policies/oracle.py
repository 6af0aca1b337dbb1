"""Clairvoyant schedules: the least time in which any policy could produce the recorded text, and a short-sighted one.

Only the dynamic program is an upper bound and only it is called 'oracle'; the greedy one, which looks no further than its round, is not.
"""

import numpy as np

from simspec.compile_cache import cached_njit
from simspec.cost import CostModel
from simspec.deferred_policy import DeferredPolicy
from simspec.policy import Policy
from simspec.round_cost import next_backlog
from simspec.schedule import empty_schedule, scheduled_policy
from simspec.trace import Trace


@cached_njit
def _solve(offset, budget, depth, run, K, draft, verify, catch_up, overhead, plan, value):
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
                        follows = value[
                            min(pos + accepted + 1, n), min(next_backlog(b, k, accepted), width - 1)
                        ]
                        seconds = overhead + catch_up[b] + draft[k] + verify[k - dropped] + follows
                        if seconds < best:
                            best = seconds
                            choice = -k if dropped else k
                value[pos, b] = best
                plan[t, b] = choice


def _oracle(trace: Trace, cost: CostModel) -> Policy:
    """The schedule of least modelled time, by dynamic programming over (row, backlog), exact in the catch-up cost.

    V[t, b] = min of overhead + verify[0] + V[t+1, min(b+1, B)] and, over 1 <= k <= cap and d in {0, 1},
    overhead + catch_up[b] + draft[k] + verify[k-d] + V[min(t+a+1, n), backlog'], a = min(k-d, run[t]); V[n, .] = 0;
    cap = min(K, budget - pos - 1, depth[t]); ties go to the shorter draft. d = 1 drops the last computed token, which
    policies may do too and which pays where owing a row costs more than a draft step: without it the bound could be
    beaten. The plan rides in params and the state is (row, backlog), so the kernel and the engine run it like any other;
    it is valid for this trace's sequences in file order only. PolicyError if the cost model is shorter than K.
    """
    plan = empty_schedule(trace, cost)
    value = np.zeros((int(np.diff(trace.offset).max()) + 1, plan.shape[1]))
    _solve(
        trace.offset, trace.budget, trace.depth, trace.run, trace.K,
        cost.draft, cost.verify, cost.catch_up, cost.overhead, plan, value,
    )  # fmt: skip
    return scheduled_policy("oracle", trace, plan)


oracle = DeferredPolicy("oracle", _oracle, clairvoyant=True)
"""The schedule of least modelled time."""

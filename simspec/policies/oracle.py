"""Clairvoyant schedules: the least time in which any policy could produce the recorded text, and a short-sighted one.

Only the dynamic program is an upper bound and only it is called 'oracle'; the greedy one, which looks no further than its round, is not.
"""

import numpy as np

from simspec.compile_cache import cached_njit
from simspec.cost import CostModel, next_backlog
from simspec.deferred_policy import DeferredPolicy
from simspec.policy import Policy, PolicyError
from simspec.trace import Trace


def _draft_more(params, state, slot, features, u):
    width, rows, row = int(params[0]), int(params[1]), int(state[0])
    if row >= rows:
        return False, True
    plan = params[2 + row * width + int(state[1])]
    return slot < abs(plan), plan >= 0


def _observe(params, state, computed, drafted, accepted, features, cost):
    width, rows, row = int(params[0]), int(params[1]), int(state[0])
    if row >= rows:
        return
    end = int(params[2 + rows * width + row])
    if row + accepted + 1 >= end:
        state[0], state[1] = end, 0.0
    else:
        state[0] = row + accepted + 1
        state[1] = min(next_backlog(int(state[1]), computed, accepted), width - 1)


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
    plan = _empty(trace, cost)
    value = np.zeros((int(np.diff(trace.offset).max()) + 1, plan.shape[1]))
    _solve(
        trace.offset, trace.budget, trace.depth, trace.run, trace.K,
        cost.draft, cost.verify, cost.catch_up, cost.overhead, plan, value,
    )  # fmt: skip
    return _scheduled("oracle", trace, plan)


oracle = DeferredPolicy("oracle", _oracle, clairvoyant=True)
"""The schedule of least modelled time."""


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
    plan = _empty(trace, cost)
    _solve_greedily(
        trace.offset, trace.budget, trace.depth, trace.run, trace.K,
        cost.draft, cost.verify, cost.catch_up, cost.overhead, plan,
    )  # fmt: skip
    return _scheduled("greedy_oracle", trace, plan)


greedy_oracle = DeferredPolicy("greedy_oracle", _greedy_oracle, clairvoyant=True)
"""A clairvoyant that looks one round ahead."""


def _empty(trace, cost):
    if trace.ratio is not None:
        raise PolicyError(
            "under the rejection rule each replay draws its future, nobody can know it: take a greedy or coupled recording"
        )
    if cost.K < trace.K:
        raise PolicyError(
            f"cost {cost.name!r} prices drafts up to {cost.K}, the trace reaches {trace.K}: measure further"
        )
    return np.zeros((trace.rows, len(cost.catch_up)))


def _scheduled(name, trace, plan):
    ends = np.repeat(trace.offset[1:], np.diff(trace.offset))
    params = (plan.shape[1], trace.rows, *plan.ravel().tolist(), *ends.tolist())
    return Policy(name, _draft_more, _observe, params, (0.0, 0.0), scope="stream")

"""Clairvoyant schedules: the bound on what any policy can reach, and a greedy one."""

import numpy as np

from simspec.cost.model import CostModel
from simspec.cost.rounds import CostTables, next_backlog
from simspec.numerics.compile import cached_njit
from simspec.policy.policy import Array, Go, Policy, PolicyError, check_priced
from simspec.policy_kind import DeferredPolicy, PolicyKind
from simspec.trace.trace import Trace

# params: entries of catch_up, rows, then the schedule [rows, entries], the end row of each row's
# sequence. state: row, backlog.


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    width, rows, row = int(params[0]), int(params[1]), int(state[0])
    if row >= rows:
        return False, True
    plan = params[2 + row * width + int(state[1])]
    return slot < abs(plan), plan >= 0


def _observe(
    params: Array, state: Array, computed: int, drafted: int, accepted: int, features: Array,
    cost: float,
) -> None:  # fmt: skip
    width, rows, row = int(params[0]), int(params[1]), int(state[0])
    if row >= rows:
        return
    end = int(params[2 + rows * width + row])
    if row + accepted + 1 >= end:
        state[0], state[1] = end, 0.0
    else:
        state[0] = row + accepted + 1
        state[1] = min(next_backlog(int(state[1]), computed, accepted), width - 1)


def empty_schedule(trace: Trace, cost: CostModel) -> np.ndarray:
    """float64[N, B] of zeros, by row and backlog; PolicyError where no schedule can be planned."""
    if trace.ratio is not None:
        raise PolicyError(
            "under the rejection rule each replay draws its future, nobody can know it: "
            "take a greedy or coupled recording"
        )
    check_priced("the oracle", cost, trace.K)
    return np.zeros((trace.rows, len(cost.catch_up)))


def scheduled_policy(name: str, trace: Trace, plan: np.ndarray) -> Policy:
    """The policy that drafts abs(plan[row, backlog]) tokens, and drops the last where the plan is
    negative.

    The plan is held in params and the state is (row, backlog), so the kernel and the engine run it
    as any policy. It is valid for this trace's sequences in file order only.
    """
    ends = np.repeat(trace.offset[1:], np.diff(trace.offset))
    params = (plan.shape[1], trace.rows, *plan.ravel().tolist(), *ends.tolist())
    return Policy(name, _draft_more, _observe, params, (0.0, 0.0), scope="stream")


@cached_njit
def _best_schedule(
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


def _planned_best(trace: Trace, cost: CostModel) -> Policy:
    plan = empty_schedule(trace, cost)
    value = np.zeros((int(np.diff(trace.offset).max()) + 1, plan.shape[1]))
    _best_schedule(
        trace.offset, trace.budget, trace.depth, trace.run, trace.K, cost.tables, plan, value
    )
    return scheduled_policy("oracle", trace, plan)


oracle = DeferredPolicy("oracle", _planned_best, clairvoyant=True)
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


@cached_njit
def _best_rounds(
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


def _planned_greedy(trace: Trace, cost: CostModel) -> Policy:
    plan = empty_schedule(trace, cost)
    _best_rounds(trace.offset, trace.budget, trace.depth, trace.run, trace.K, cost.tables, plan)
    return scheduled_policy("greedy_oracle", trace, plan)


greedy_oracle = DeferredPolicy("greedy_oracle", _planned_greedy, clairvoyant=True)
"""The k of most committed tokens per second of this round alone; not an upper bound.

argmax over 0 <= k <= cap of min(min(k, run[t]) + 1, tokens left) / (overhead + catch_up[b] if k +
draft[k] + verify[k]). Ties go to the shorter draft. It knows the future and still loses to
`oracle`, since a round's rate ignores where the round ends. It bounds what a rule of one round
could gain from perfect knowledge. PolicyError as `oracle`.
"""


POLICIES = (
    PolicyKind(
        oracle, "bounds", "ours", "the recorded tokens",
        "the schedule of least time, knowing the future", examples=("oracle",),
    ),
    PolicyKind(
        greedy_oracle, "bounds", "ours", "the recorded tokens",
        "the best throughput of each round, knowing the future", examples=("greedy_oracle",),
    ),
)  # fmt: skip

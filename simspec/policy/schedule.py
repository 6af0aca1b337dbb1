"""A policy that follows a schedule planned for one trace."""

import numpy as np

from simspec.cost.model import CostModel
from simspec.cost.rounds import next_backlog
from simspec.policy.policy import Array, Go, Policy, PolicyError
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
    params: Array,
    state: Array,
    computed: int,
    drafted: int,
    accepted: int,
    features: Array,
    cost: float,
) -> None:
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
    if cost.K < trace.K:
        raise PolicyError(
            f"cost {cost.name!r} prices drafts up to {cost.K}, "
            f"the trace reaches {trace.K}: measure further"
        )
    return np.zeros((trace.rows, len(cost.catch_up)))


def scheduled_policy(name: str, trace: Trace, plan: np.ndarray) -> Policy:
    """The policy that drafts abs(plan[row, backlog]) tokens, and drops the last where the plan is
    negative.

    The plan is held in params and the state is (row, backlog), so the kernel and the engine run it
    as any policy. It is valid for this trace's sequences in file order only.
    """
    ends = np.repeat(trace.offset[1:], np.diff(trace.offset))
    params = (
        float(plan.shape[1]),
        float(trace.rows),
        *plan.ravel().tolist(),
        *ends.astype(float).tolist(),
    )
    return Policy(name, _draft_more, _observe, params, (0.0, 0.0), scope="stream")

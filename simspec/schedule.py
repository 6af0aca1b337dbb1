"""A policy that follows a schedule planned for one trace."""

import numpy as np

from simspec.policy import Policy, PolicyError
from simspec.round_cost import next_backlog


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


def empty_schedule(trace, cost):
    if trace.ratio is not None:
        raise PolicyError(
            "under the rejection rule each replay draws its future, nobody can know it: take a greedy or coupled recording"
        )
    if cost.K < trace.K:
        raise PolicyError(
            f"cost {cost.name!r} prices drafts up to {cost.K}, the trace reaches {trace.K}: measure further"
        )
    return np.zeros((trace.rows, len(cost.catch_up)))


def scheduled_policy(name, trace, plan):
    ends = np.repeat(trace.offset[1:], np.diff(trace.offset))
    params = (plan.shape[1], trace.rows, *plan.ravel().tolist(), *ends.tolist())
    return Policy(name, _draft_more, _observe, params, (0.0, 0.0), scope="stream")

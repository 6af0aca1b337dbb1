"""States and answers of compiled posterior policies."""

import numpy as np

NONE = np.full((16, 2), np.nan)


def state_after(policy, state, rounds):
    """The state after these rounds (k, a), by the policy's compiled function."""
    params, state = np.array(policy.params), np.array(state, dtype=float)
    for k, a in rounds:
        policy.compiled()[1](params, state, k, k, a, NONE, 0.0)
    return state


def answer(policy, state, u, shown=()):
    features = NONE.copy()
    features[0, : len(shown)] = shown
    return policy.compiled()[0](
        np.array(policy.params), np.array(state, dtype=float), 1, features, u
    )[0]


def threshold(policy, state, shown=()):
    """The probability to continue: the u at which the compiled answer changes, by bisection down
    to neighbouring floats.
    """
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if answer(policy, state, middle, shown) else (low, middle)
    return high

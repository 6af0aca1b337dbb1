"""A stopping threshold that follows the recent acceptance rate (Draft & Verify, AdaEDL)."""

import math
from collections.abc import Callable
from typing import Any

from simspec.numerics.compile import cached_njit
from simspec.policy.arguments import check_number, policy_name
from simspec.policy.policy import Array, Go, Policy


@cached_njit
def averaged(average: float, value: float, weight: float) -> float:
    """The running average after one more value: (1 - weight) average + weight value."""
    return (1.0 - weight) * average + weight * value


# state: the threshold, the average of accepted / drafted.
# params: g, target, step, weight of a round in the average, of a change in the threshold.


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        return True, True
    feature = features[slot - 1, 0]
    certainty = feature if params[0] == 0.0 else 1.0 - math.sqrt(params[0] * feature)
    return certainty >= state[0], True


def _observe(
    params: Array,
    state: Array,
    computed: int,
    drafted: int,
    accepted: int,
    features: Array,
    cost: float,
) -> None:
    if drafted == 0:
        return
    state[1] = averaged(state[1], accepted / drafted, params[3])
    wanted = state[0]
    if state[1] < params[1]:
        wanted += params[2]
    elif drafted < len(features):
        wanted -= params[2]
    state[0] = averaged(state[0], wanted, params[4])


def adaptive_policy(
    policy: str, g: float, feature: str, factory: Callable[..., Any], settings: dict[str, Any]
) -> Policy:
    """Stop after a token with 1 - sqrt(g feature), or feature where g is 0, below the threshold.

    After a round m = 0.5 m + 0.5 accepted / drafted, from 0; th' = th + step if m < target, else th
    - step, else th where the draft was K long; th = 0.9 th + 0.1 th'. A round without a draft
    changes nothing. PolicyError for a threshold, target or step outside [0, 1].
    """
    for name in ("threshold", "target", "step"):
        check_number(policy, name, settings[name], 0, 1)
    params = (g, settings["target"], settings["step"], 0.5, 0.1)
    return Policy(
        policy_name(policy, settings, factory),
        _draft_more,
        _observe,
        params,
        state0=(settings["threshold"], 0.0),
        K=settings["K"],
        reads=(feature,),
        scope=settings["scope"],
    )

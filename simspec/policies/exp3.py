"""Exponential weights over draft lengths (EXP3Spec of BanditSpec)."""

import math
from functools import partial
from typing import Any

from simspec.cost.model import CostModel
from simspec.numerics.compile import cached_njit
from simspec.policy.arguments import check_lengths, check_number, check_scope, policy_name
from simspec.policy.policy import Array, Go, Policy
from simspec.policy.seconds import planned_seconds, within_depth
from simspec.policy_kind import LENGTHS, SCOPE, DeferredPolicy, PolicyKind, Real
from simspec.trace.trace import Trace

_HEAD, _STATE = 2, 3
# params: rate, seconds per token of the best possible round, then the arms.
# state: the arm, its probability, rounds, then the estimated loss of each arm.


@cached_njit
def learning_rate(params: Array, state: Array) -> float:
    """eta = rate sqrt(ln n / (n t)) in round t."""
    n = len(params) - _HEAD
    return params[0] * math.sqrt(math.log(n) / (n * (state[2] + 1.0)))


@cached_njit
def drawn_arm(params: Array, state: Array, u: float) -> tuple[int, float]:
    """(arm, its probability) of the uniform draw u."""
    n, eta, least = len(params) - _HEAD, learning_rate(params, state), state[_STATE]
    for i in range(1, n):
        least = min(least, state[_STATE + i])
    total = 0.0
    for i in range(n):
        total += math.exp(-eta * (state[_STATE + i] - least))
    arm, probability, reach = 0, 1.0, 0.0
    for i in range(n):
        share = math.exp(-eta * (state[_STATE + i] - least)) / total
        reach += share
        if share > 0.0:
            arm, probability = i, share
            if u < reach:
                break
    return arm, probability


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        arm, probability = drawn_arm(params, state, u)
        state[0], state[1] = arm, probability
    return slot < params[_HEAD + int(state[0])], True


def _observe(
    params: Array,
    state: Array,
    computed: int,
    drafted: int,
    accepted: int,
    features: Array,
    cost: float,
) -> None:
    most = (accepted + 1) * params[1]
    loss = 1.0 - most / cost if most < cost else 0.0
    state[_STATE + int(state[0])] += loss / state[1]
    state[2] += 1.0


def exp3(arms: str = "1/2/3/4", rate: float = 1.0, scope: str = "sequence") -> DeferredPolicy:
    """EXP3Spec: a draft length drawn with weights exponential in its estimated losses.

    P(arm i) ~ exp(-eta L_i) in round t, eta = rate sqrt(ln n / (n t)) for n arms. L_i sums (1 -
    reward) / P(i) over the rounds that drew i. The reward is that of `ucb`: throughput at modelled
    seconds over the largest possible. Arms deeper than the recording are dropped. PolicyError for
    values outside their ranges, and when resolved if no arm is left.

    The released code of BanditSpec has no EXP3Spec, and the paper's rate is unverified: this is
    Exp3 with the anytime rate of Bubeck and Cesa-Bianchi (2012), section 3.1.

    Source: Hou et al., arXiv 2505.15141.
    """
    lengths = check_lengths("exp3", "arms", arms)
    check_number("exp3", "rate", rate, 0, 1000)
    check_scope("exp3", scope)
    settings = {"arms": str(arms), "rate": rate, "scope": scope}
    name = policy_name("exp3", settings, exp3)
    return DeferredPolicy(name, partial(_plan, name, lengths, settings))


def _plan(
    name: str, lengths: tuple[int, ...], settings: dict[str, Any], trace: Trace, cost: CostModel
) -> Policy:
    """The policy with the scale of its rewards among its parameters."""
    arms = within_depth(name, lengths, trace.K)
    seconds = planned_seconds(name, cost, arms[-1])
    scale = min(seconds[k] / (k + 1) for k in arms)
    params = (settings["rate"], scale, *arms)
    state0 = (0.0, 1.0, 0.0, *(0.0,) * len(arms))
    return Policy(
        name, _draft_more, _observe, params, state0,
        scope=settings["scope"], random=True,
    )  # fmt: skip


POLICIES = (
    PolicyKind(
        exp3, "costs", "BanditSpec", "throughput of each length",
        "drawn with exponential weights", "lengths 1/2/3/4, rate 1",
        "not in the released code; rate unverified",
        examples=("exp3", "exp3:0/2/5,2,scope=stream"),
        space={"arms": LENGTHS, "rate": Real(0.05, 20, log=True), "scope": SCOPE},
    ),
)  # fmt: skip

"""Bandits over draft lengths (UCBSpec and EXP3Spec of BanditSpec)."""

import math
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from simspec.cost.model import CostModel
from simspec.numerics.compile import cached_njit
from simspec.policy.policy import (
    Array,
    Go,
    Policy,
    PolicyError,
    Scope,
    check_lengths,
    checked,
    planned_seconds,
    policy_name,
)  # fmt: skip
from simspec.policy_kind import LENGTHS, SCOPE, DeferredPolicy, PolicyKind, Real
from simspec.trace.trace import Trace

Rate = Annotated[float, Meta(ge=0, le=1000)]
_UCB_ARMS, _UCB_SUMS = 3, 2
# params: 1 for released, exploration, seconds per token of the best possible round, then the arms.
# state: the arm, rounds, then per arm: pulls and the sum of its rewards.


@cached_njit
def chosen_arm(params: Array, state: Array) -> int:
    """Index of the arm of the largest bound; ties go to the first."""
    n, t = len(params) - _UCB_ARMS, state[1]
    if params[0] > 0.0 and t < 2.0 * n - 1.0:
        return int(t) % n
    choice, best = 0, -1.0
    for i in range(n):
        pulls = state[_UCB_SUMS + 2 * i]
        if pulls == 0.0:
            return i
        bound = state[_UCB_SUMS + 2 * i + 1] / pulls
        if params[0] == 0.0:
            bound += math.sqrt(params[1] * math.log(t) / pulls)
        if bound > best + 1e-12:
            choice, best = i, bound
    return choice


def _ucb_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        state[0] = chosen_arm(params, state)
    return slot < params[_UCB_ARMS + int(state[0])], True


def _ucb_observe(
    params: Array, state: Array, computed: int, drafted: int, accepted: int, features: Array,
    cost: float,
) -> None:  # fmt: skip
    at = _UCB_SUMS + 2 * int(state[0])
    most = (accepted + 1) * params[2]
    state[1] += 1.0
    state[at] += 1.0
    state[at + 1] += most / cost if most < cost else 1.0


@checked
def ucb(
    variant: Literal["ucb1", "released"] = "ucb1",
    arms: str | int = "1/2/3/4",
    exploration: Rate = 2.0,
    scope: Scope = "sequence",
) -> DeferredPolicy:
    """UCBSpec: the draft length of the largest upper confidence bound of its throughput.

    The reward of a round is (accepted + 1) / seconds, divided by the largest that an arm could
    have, max (k + 1) / (overhead + draft[k] + verify[k]), so that it lies in [0, 1].

    `ucb1`: each arm once, then argmax mean + sqrt(exploration ln t / pulls) (Auer, Cesa-Bianchi and
    Fischer, 2002). `released`: all arms in turn for 2 n - 1 rounds, then argmax mean: its bonus,
    sqrt(6 ln t / t), is the same for every arm and never decides. seconds are the modelled ones of
    each round. Arms deeper than the recording are dropped; PolicyError when resolved if none is
    left. As released, each generation starts anew.

    Source: Hou et al., arXiv 2505.15141; sail-sg/BanditSpec, generate_utils.py at a30f56d.
    """
    lengths = check_lengths("ucb", "arms", arms)
    settings = {"variant": variant, "arms": str(arms), "exploration": exploration, "scope": scope}
    name = policy_name("ucb", settings, ucb)
    return DeferredPolicy(name, partial(_planned_ucb, name, lengths, settings))


def _priced_arms(
    policy: str, lengths: tuple[int, ...], K: int, cost: CostModel
) -> tuple[list[int], float]:
    """(the lengths that drafts reach, seconds per token of the best possible round)."""
    arms = [length for length in lengths if length <= K]
    if not arms:
        raise PolicyError(
            f"{policy} drafts {lengths[0]} tokens or more, here drafts reach {K}: "
            "take shorter lengths"
        )
    seconds = planned_seconds(policy, cost, arms[-1])
    return arms, min(seconds[k] / (k + 1) for k in arms)


def _planned_ucb(
    name: str, lengths: tuple[int, ...], settings: dict[str, Any], trace: Trace, cost: CostModel
) -> Policy:
    arms, scale = _priced_arms(name, lengths, trace.K, cost)
    params = (settings["variant"] == "released", settings["exploration"], scale, *arms)
    state0 = (0.0,) * (_UCB_SUMS + 2 * len(arms))
    return Policy(name, _ucb_more, _ucb_observe, params, state0, scope=settings["scope"])


_EXP3_ARMS, _EXP3_LOSSES = 2, 3
# params: rate, seconds per token of the best possible round, then the arms.
# state: the arm, its probability, rounds, then the estimated loss of each arm.


@cached_njit
def learning_rate(params: Array, state: Array) -> float:
    """eta = rate sqrt(ln n / (n t)) in round t."""
    n = len(params) - _EXP3_ARMS
    return params[0] * math.sqrt(math.log(n) / (n * (state[2] + 1.0)))


@cached_njit
def drawn_arm(params: Array, state: Array, u: float) -> tuple[int, float]:
    """(arm, its probability) of the uniform draw u."""
    n, eta, least = len(params) - _EXP3_ARMS, learning_rate(params, state), state[_EXP3_LOSSES]
    for i in range(1, n):
        least = min(least, state[_EXP3_LOSSES + i])
    total = 0.0
    for i in range(n):
        total += math.exp(-eta * (state[_EXP3_LOSSES + i] - least))
    arm, probability, reach = 0, 1.0, 0.0
    for i in range(n):
        share = math.exp(-eta * (state[_EXP3_LOSSES + i] - least)) / total
        reach += share
        if share > 0.0:
            arm, probability = i, share
            if u < reach:
                break
    return arm, probability


def _exp3_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        arm, probability = drawn_arm(params, state, u)
        state[0], state[1] = arm, probability
    return slot < params[_EXP3_ARMS + int(state[0])], True


def _exp3_observe(
    params: Array, state: Array, computed: int, drafted: int, accepted: int, features: Array,
    cost: float,
) -> None:  # fmt: skip
    most = (accepted + 1) * params[1]
    loss = 1.0 - most / cost if most < cost else 0.0
    state[_EXP3_LOSSES + int(state[0])] += loss / state[1]
    state[2] += 1.0


@checked
def exp3(
    arms: str | int = "1/2/3/4", rate: Rate = 1.0, scope: Scope = "sequence"
) -> DeferredPolicy:
    """EXP3Spec: a draft length drawn with weights exponential in its estimated losses.

    P(arm i) ~ exp(-eta L_i) in round t, eta = rate sqrt(ln n / (n t)) for n arms. L_i sums (1 -
    reward) / P(i) over the rounds that drew i. Rewards and arms are those of `ucb`.

    The released code of BanditSpec has no EXP3Spec, and the paper's rate is unverified: this is
    Exp3 with the anytime rate of Bubeck and Cesa-Bianchi (2012), section 3.1.

    Source: Hou et al., arXiv 2505.15141.
    """
    lengths = check_lengths("exp3", "arms", arms)
    settings = {"arms": str(arms), "rate": rate, "scope": scope}
    name = policy_name("exp3", settings, exp3)
    return DeferredPolicy(name, partial(_planned_exp3, name, lengths, settings))


def _planned_exp3(
    name: str, lengths: tuple[int, ...], settings: dict[str, Any], trace: Trace, cost: CostModel
) -> Policy:
    arms, scale = _priced_arms(name, lengths, trace.K, cost)
    params = (settings["rate"], scale, *arms)
    state0 = (0.0, 1.0, 0.0, *(0.0,) * len(arms))
    return Policy(
        name, _exp3_more, _exp3_observe, params, state0,
        scope=settings["scope"], random=True,
    )  # fmt: skip


POLICIES = (
    PolicyKind(
        ucb, "costs", "BanditSpec", "throughput of each length", "upper confidence bound",
        "lengths 1/2/3/4, exploration 2", "UCB1 (default), or `released`",
        examples=("ucb", "ucb:released,0/1/3,scope=stream"),
        space={"arms": LENGTHS, "exploration": Real(0.001, 8, log=True), "scope": SCOPE},
    ),
    PolicyKind(
        exp3, "costs", "BanditSpec", "throughput of each length",
        "drawn with exponential weights", "lengths 1/2/3/4, rate 1",
        "not in the released code; rate unverified",
        examples=("exp3", "exp3:0/2/5,2,scope=stream"),
        space={"arms": LENGTHS, "rate": Real(0.05, 20, log=True), "scope": SCOPE},
    ),
)  # fmt: skip

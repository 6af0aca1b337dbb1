"""Upper confidence bounds over draft lengths (UCBSpec of BanditSpec)."""

import math
from functools import partial
from typing import Any

from simspec.cost.model import CostModel
from simspec.numerics.compile import cached_njit
from simspec.policy.arguments import (
    check_lengths,
    check_number,
    check_option,
    check_scope,
    policy_name,
)  # fmt: skip
from simspec.policy.policy import Array, Go, Policy
from simspec.policy.seconds import planned_seconds, within_depth
from simspec.policy_kind import LENGTHS, SCOPE, DeferredPolicy, PolicyKind, Real
from simspec.trace.trace import Trace

VARIANTS = ("ucb1", "released")
_HEAD, _STATE = 3, 2
# params: 1 for released, exploration, seconds per token of the best possible round, then the arms.
# state: the arm, rounds, then per arm: pulls and the sum of its rewards.


@cached_njit
def chosen_arm(params: Array, state: Array) -> int:
    """Index of the arm of the largest bound; ties go to the first."""
    n, t = len(params) - _HEAD, state[1]
    if params[0] > 0.0 and t < 2.0 * n - 1.0:
        return int(t) % n
    choice, best = 0, -1.0
    for i in range(n):
        pulls = state[_STATE + 2 * i]
        if pulls == 0.0:
            return i
        bound = state[_STATE + 2 * i + 1] / pulls
        if params[0] == 0.0:
            bound += math.sqrt(params[1] * math.log(t) / pulls)
        if bound > best + 1e-12:
            choice, best = i, bound
    return choice


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        state[0] = chosen_arm(params, state)
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
    at = _STATE + 2 * int(state[0])
    most = (accepted + 1) * params[2]
    state[1] += 1.0
    state[at] += 1.0
    state[at + 1] += most / cost if most < cost else 1.0


def ucb(
    variant: str = "ucb1", arms: str = "1/2/3/4", exploration: float = 2.0, scope: str = "sequence"
) -> DeferredPolicy:
    """UCBSpec: the draft length of the largest upper confidence bound of its throughput.

    The reward of a round is (accepted + 1) / seconds, divided by the largest that an arm could
    have, max (k + 1) / (overhead + draft[k] + verify[k]), so that it lies in [0, 1].

    | variant  | arm of round t + 1                                                            |
    | -------- | ----------------------------------------------------------------------------- |
    | ucb1     | argmax mean + sqrt(exploration ln t / pulls), each arm once first             |
    | released | all arms in turn for 2 n - 1 rounds, then argmax mean                         |

    As released, the bonus is sqrt(6 ln t / t) for every arm alike: it never decides, and the rule
    is greedy. ucb1 is that of Auer, Cesa-Bianchi and Fischer (2002). seconds are the modelled ones
    of each round. Arms deeper than the recording are dropped. As released, each
    generation starts anew. PolicyError for values outside their ranges, and when resolved if no
    arm is left.

    Source: Hou et al., arXiv 2505.15141; sail-sg/BanditSpec, generate_utils.py at a30f56d.
    """
    check_option("ucb", "variant", variant, VARIANTS)
    lengths = check_lengths("ucb", "arms", arms)
    check_number("ucb", "exploration", exploration, 0, 1000)
    check_scope("ucb", scope)
    settings = {"variant": variant, "arms": str(arms), "exploration": exploration, "scope": scope}
    name = policy_name("ucb", settings, ucb)
    return DeferredPolicy(name, partial(_plan, name, lengths, settings))


def _plan(
    name: str, lengths: tuple[int, ...], settings: dict[str, Any], trace: Trace, cost: CostModel
) -> Policy:
    """The policy with the scale of its rewards among its parameters."""
    arms = within_depth(name, lengths, trace.K)
    seconds = planned_seconds(name, cost, arms[-1])
    scale = min(seconds[k] / (k + 1) for k in arms)
    params = (settings["variant"] == "released", settings["exploration"], scale, *arms)
    state0 = (0.0,) * (_STATE + 2 * len(arms))
    return Policy(name, _draft_more, _observe, params, state0, scope=settings["scope"])


POLICIES = (
    PolicyKind(
        ucb, "costs", "BanditSpec", "throughput of each length", "upper confidence bound",
        "lengths 1/2/3/4, exploration 2", "UCB1 (default), or `released`",
        examples=("ucb", "ucb:released,0/1/3,scope=stream"),
        space={"arms": LENGTHS, "exploration": Real(0.001, 8, log=True), "scope": SCOPE},
    ),
)  # fmt: skip

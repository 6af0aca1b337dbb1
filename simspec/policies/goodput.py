"""The draft length of the best goodput at running acceptance rates (proposed for vLLM)."""

from functools import partial
from typing import Any

from simspec.cost.model import CostModel
from simspec.numerics.compile import cached_njit
from simspec.policy.arguments import (
    check_integer,
    check_number,
    check_option,
    check_scope,
    policy_name,
)  # fmt: skip
from simspec.policy.policy import Array, Go, Policy
from simspec.policy.seconds import planned_seconds
from simspec.policy.threshold import averaged
from simspec.policy_kind import ROUNDS, SCOPE, SHARE, DeferredPolicy, Option, PolicyKind, Real
from simspec.trace.trace import Trace

_HEAD, _STATE = 5, 3
# params: weight of a new window, window, cooldown, shortest, K, then the price of rounds of 0..K.
# state: k (-1 before the first round), rounds to wait, rounds in the window, then per depth: rate,
# tokens reached and tokens accepted in the window.


@cached_njit
def best_goodput(params: Array, state: Array) -> int:
    """The k in shortest..K of most expected tokens per price; ties go to the shorter draft."""
    tokens, reach, choice, best = 1.0, 1.0, int(params[3]), 0.0
    for k in range(int(params[4]) + 1):
        if k > 0:
            reach *= state[_STATE + 3 * (k - 1)]
            tokens += reach
        goodput = tokens / params[_HEAD + k]
        if k >= params[3] and goodput > best * (1.0 + 1e-12):
            choice, best = k, goodput
    return choice


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        if state[1] > 0.0:
            state[1] -= 1.0
        else:
            choice = best_goodput(params, state)
            if state[0] >= 0.0 and choice != state[0]:
                state[1] = params[2]
            state[0] = choice
    return slot < state[0], True


def _observe(
    params: Array,
    state: Array,
    computed: int,
    drafted: int,
    accepted: int,
    features: Array,
    cost: float,
) -> None:
    for j in range(min(accepted + 1, drafted)):
        state[_STATE + 3 * j + 1] += 1.0
        if j < accepted:
            state[_STATE + 3 * j + 2] += 1.0
    state[2] += 1.0
    if state[2] < params[1]:
        return
    state[2] = 0.0
    for j in range(int(params[4])):
        at = _STATE + 3 * j
        if state[at + 1] > 0.0:
            state[at] = averaged(state[at], state[at + 2] / state[at + 1], params[0])
        state[at + 1], state[at + 2] = 0.0, 0.0


def goodput(
    price: str = "measured",
    weight: float = 0.3,
    prior: float = 0.85,
    window: int = 10,
    cooldown: int = 2,
    shortest: int = 0,
    c: float = 0.1144,
    scope: str = "stream",
) -> DeferredPolicy:
    """vLLM's proposed adaptive K: the k of most expected tokens per price of a round.

    k = argmax (1 + a_1 + a_1 a_2 + ... + a_1 ... a_k) / price[k], a_j the probability that token j
    is accepted given those before it. a_j starts at `prior`. After each `window` rounds a_j = (1 -
    weight) a_j + weight accepted / reached, where any round reached token j. A change of k holds
    for `cooldown` further rounds. At k = 0 nothing is learned, so it stays there: take `shortest`
    1 to probe.

    | price    | price[k]                                                                    |
    | -------- | --------------------------------------------------------------------------- |
    | measured | overhead + draft[k] + verify[k] of (trace, cost), without backlog: ours     |
    | released | 1 + c k + 0.002, and 1 at k = 0; c of a 0.5B drafter on an RTX 4050         |

    Source: vllm-project/vllm pull requests 44336 (closed) and 47111 (open), and the branch's page
    with its defaults. Its code was not available. That a_j is blended from the prior, that the
    first choice takes no cooldown, and one state for all requests (scope 'stream') are unverified.
    A hysteresis and random exploration of the first request are left out. PolicyError for values
    outside their ranges, and when resolved for a cost model shorter than the trace's K.
    """
    check_option("goodput", "price", price, ("measured", "released"))
    for key, value, high in (("weight", weight, 1), ("prior", prior, 1), ("c", c, 1000)):
        check_number("goodput", key, value, 0, high)
    check_integer("goodput", "window", window, 1, 10**6)
    check_integer("goodput", "cooldown", cooldown, 0, 10**6)
    check_integer("goodput", "shortest", shortest, 0, 255)
    check_scope("goodput", scope)
    settings = {
        "price": price, "weight": weight, "prior": prior, "window": window, "cooldown": cooldown,
        "shortest": shortest, "c": c, "scope": scope,
    }  # fmt: skip
    name = policy_name("goodput", settings, goodput)
    return DeferredPolicy(name, partial(_plan, name, settings))


def _plan(name: str, settings: dict[str, Any], trace: Trace, cost: CostModel) -> Policy:
    """The policy with the prices among its parameters."""
    K = trace.K
    prices = [1.0, *(1.002 + settings["c"] * k for k in range(1, K + 1))]
    if settings["price"] == "measured":
        prices = planned_seconds(name, cost, K)
    params = (
        settings["weight"], settings["window"], settings["cooldown"], min(settings["shortest"], K),
        K, *prices,
    )  # fmt: skip
    state0 = (-1.0, 0.0, 0.0, *(settings["prior"], 0.0, 0.0) * K)
    return Policy(name, _draft_more, _observe, params, state0, scope=settings["scope"])


POLICIES = (
    PolicyKind(
        goodput, "costs", "vLLM, pull requests 44336 and 47111",
        "acceptance by position, averaged", "the length of most expected tokens per price",
        "weight 0.3, prior 0.85, window 10, cooldown 2",
        "measured price (default), or `released`: 1 + 0.1144 K; the code was not available",
        examples=("goodput:window=1", "goodput:released,window=2,shortest=1,scope=sequence"),
        space={
            "price": Option(("measured", "released")), "weight": Real(0.02, 1, log=True),
            "prior": SHARE, "window": ROUNDS, "cooldown": Option((0, 2, 5, 10)),
            "shortest": Option((0, 1)), "scope": SCOPE,
        },
    ),
)  # fmt: skip

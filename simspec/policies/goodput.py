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
from simspec.policy_kind import ROUNDS, SCOPE, SHARE, DeferredPolicy, Option, PolicyKind, Real
from simspec.trace.trace import Trace

_HEAD, _STATE = 5, 5
_LEAST, _MOST = 0.001, 0.999
_PENALTY = 0.002  # of one running request
# params: weight of a new window, window, cooldown, shortest, K, then the price of rounds of 0..K
# over that of plain decoding.
# state: k, rounds to wait, drafts in the window, the length that the last cooldown started from,
# windows completed; then per depth: rate, tokens reached and tokens accepted in the window.


@cached_njit
def best_goodput(params: Array, state: Array) -> int:
    """The k of most expected tokens per price; ties go to the longer draft, and no gain to
    `shortest`.
    """
    tokens, reach, choice, best = 1.0, 1.0, 0, 1.0
    for k in range(1, int(params[4]) + 1):
        reach *= max(_LEAST, min(_MOST, state[_STATE + 3 * (k - 1)]))
        tokens += reach
        goodput = tokens / params[_HEAD + k]
        if k >= params[3] and goodput >= best:
            choice, best = k, goodput
    return choice if choice > 0 else int(params[3])


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0 and state[4] > 0.0:
        if state[1] > 0.0:
            state[1] -= 1.0
            state[0] = state[3]
        else:
            state[0] = best_goodput(params, state)
            if abs(state[0] - state[3]) > 1.0:
                state[1], state[3] = params[2], state[0]
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
    if drafted == 0:
        return
    for j in range(min(accepted + 1, drafted)):
        state[_STATE + 3 * j + 1] += 1.0
        if j < accepted:
            state[_STATE + 3 * j + 2] += 1.0
    state[2] += 1.0
    if state[2] < params[1]:
        return
    state[2], state[4] = 0.0, state[4] + 1.0
    for j in range(int(params[4])):
        at = _STATE + 3 * j
        if state[at + 1] > 0.0:
            # As released: the other form of an average rounds differently, and ties are decided.
            state[at] += params[0] * (state[at + 2] / state[at + 1] - state[at])
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
    is accepted given those before it, within [0.001, 0.999]. a_j starts at `prior`. After each
    `window` verified drafts a_j += weight (accepted / reached - a_j), where any draft reached token
    j. Until the first window is full the rule drafts the longest. Plain decoding counts 1; ties go
    to the longer draft; without a gain k is `shortest`. A change of k by more than 1 holds for
    `cooldown` rounds. At k = 0 nothing is learned, so it stays there: take `shortest` 1 to probe.

    | price    | price[k]                                                                    |
    | -------- | --------------------------------------------------------------------------- |
    | measured | overhead + draft[k] + verify[k] of (trace, cost), over that at k = 0: ours  |
    | released | c k + 1 + 0.002; c of a 0.5B drafter on an RTX 4050                         |

    Source: vllm-project/vllm, pull requests 44336 (closed) and 47111 (open), `_compute_adaptive_k`
    in v1/core/sched/scheduler.py; rules at cfee1b19, the length that a cooldown compares with at
    fc46777. One state for all requests (scope 'stream'). The engine applies k one step later, which
    is left out. PolicyError for values outside their ranges, and when resolved for a cost model
    shorter than the trace's K.
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
    # The released order of additions: ties are decided by it.
    prices = [1.0, *(k * settings["c"] + 1.0 + _PENALTY for k in range(1, K + 1))]
    if settings["price"] == "measured":
        seconds = planned_seconds(name, cost, K)
        prices = [each / seconds[0] for each in seconds]
    params = (
        settings["weight"], settings["window"], settings["cooldown"], min(settings["shortest"], K),
        K, *prices,
    )  # fmt: skip
    state0 = (K, 0.0, 0.0, K, 0.0, *(settings["prior"], 0.0, 0.0) * K)
    return Policy(name, _draft_more, _observe, params, state0, scope=settings["scope"])


POLICIES = (
    PolicyKind(
        goodput, "costs", "vLLM, pull requests 44336 and 47111",
        "acceptance by position, averaged", "the length of most expected tokens per price",
        "weight 0.3, prior 0.85, window 10, cooldown 2",
        "measured price (default), or `released`: 1.002 + 0.1144 K",
        examples=("goodput:window=1", "goodput:released,window=2,shortest=1,scope=sequence"),
        space={
            "price": Option(("measured", "released")), "weight": Real(0.02, 1, log=True),
            "prior": SHARE, "window": ROUNDS, "cooldown": Option((0, 2, 5, 10)),
            "shortest": Option((0, 1)), "scope": SCOPE,
        },
    ),
)  # fmt: skip

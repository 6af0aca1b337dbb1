"""Draft lengths of serving engines, by outcomes of earlier rounds (goodput: at modelled prices)."""

import math
from functools import partial
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from simspec.cost.model import CostModel
from simspec.numerics.compile import cached_njit
from simspec.policy.policy import (
    Array,
    Count,
    Draft,
    Go,
    Length,
    Policy,
    PolicyError,
    Scope,
    Share,
    check_lengths,
    checked,
    planned_seconds,
    policy_name,
)  # fmt: skip
from simspec.policy_kind import (
    FLAG,
    LENGTHS,
    ROUNDS,
    SCOPE,
    SHARE,
    DeferredPolicy,
    Option,
    PolicyKind,
    Real,
)  # fmt: skip
from simspec.trace.trace import Trace


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    return slot < state[0], True


def _heuristic_observe(
    params: Array, state: Array, computed: int, drafted: int, accepted: int, features: Array,
    cost: float,
) -> None:  # fmt: skip
    state[0] = state[0] + 2.0 if accepted == drafted else max(1.0, state[0] - 1.0)


@checked
def hf_heuristic(start: Count = 5, transient: bool = False) -> Policy:
    """The rule of HuggingFace transformers: n += 2 if all were accepted, else n = max(1, n - 1).

    As released, 'all' means all submitted tokens, even where something else cut the draft short,
    and an empty draft counts. n has no upper bound. `heuristic` carries n across prompts,
    `heuristic_transient` starts anew. start is 5 in older releases, 20 in newer ones.
    """
    name = f"hf_heuristic:{start}" + (",transient=true" if transient else "")
    scope = "sequence" if transient else "stream"
    return Policy(name, _draft_more, _heuristic_observe, state0=(start,), scope=scope)


# params: low, high, attempts, shortest, longest.
# state: length, drafts, drafted and accepted tokens since the last decision.


def _threshold_observe(
    params: Array, state: Array, computed: int, drafted: int, accepted: int, features: Array,
    cost: float,
) -> None:  # fmt: skip
    if drafted == 0:
        return
    state[1] += 1.0
    state[2] += drafted
    state[3] += accepted
    if state[1] < params[2]:
        return
    share = state[3] / state[2]
    if share > params[1]:
        state[0] = max(state[0], min(state[0] + 1.0, params[4], len(features)))
    elif share < params[0]:
        state[0] = min(state[0], max(state[0] - 1.0, params[3]))
    state[1:] = 0.0


@checked
def two_thresholds(
    low: Share = 0.4,
    high: Share = 0.8,
    attempts: Count = 128,
    start: Length = 3,
    shortest: Length = 1,
    longest: Length = 255,
    scope: Scope = "stream",
) -> Policy:
    """One token more where most drafted tokens are accepted, one less where few are.

    Every `attempts` drafts, by accepted / drafted tokens since the last decision: above `high` k +
    1, below `low` k - 1, in shortest..longest and the recording. Rounds without a draft are no
    attempts.

    Source: servers' own rules with these three numbers, no reference implementation: unverified
    are that tokens are counted, that counts start anew at each decision, and `start`.
    """
    settings = dict(locals())
    if low > high or not shortest <= start <= longest:
        raise PolicyError(
            f"two_thresholds: low {low}, high {high}, lengths {shortest}, {start}, {longest}, "
            "expected low <= high and shortest <= start <= longest"
        )
    name = policy_name("two_thresholds", settings, two_thresholds)
    params = (low, high, attempts, shortest, longest)
    return Policy(
        name, _draft_more, _threshold_observe, params, (start, 0.0, 0.0, 0.0), scope=scope
    )


Wait = Annotated[int, Meta(ge=0, le=10**6)]
Shift = Annotated[float, Meta(ge=-255, le=255)]
_TIERS = 7
# params: weight of a new round, interval, warm-up, down, up, ceiling, lag, then the tiers.
# state: index of the decided tier, average, rounds, index of the tier in use.


@cached_njit
def next_tier(params: Array, state: Array) -> int:
    """Index of the tier after the one in the state; sets the average where a tier of 0 has none."""
    tiers, i, average = params[_TIERS:], int(state[0]), state[1]
    last = len(tiers) - 1
    if tiers[i] == 0.0:
        i = min(i + 1, last)
        if tiers[i] > 0.0 and average < 0.0:
            state[1] = tiers[i] - 1.0
        return i
    start = i
    while i > 0:
        below = tiers[i - 1]
        threshold = (0.5 if below == 0.0 else below - 0.5) + params[3]
        if average > threshold:
            break
        i -= 1
    while start <= i < last and average > tiers[i] - 0.5 + params[4]:
        i += 1
    if params[5] > 0.0 and i <= start:
        ceiling = max(1.0, math.ceil(average * params[5]))
        while i > 0 and tiers[i] > ceiling:
            i -= 1
    return i


def _tier_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    return slot < params[_TIERS + int(state[3])], True


def _tier_observe(
    params: Array, state: Array, computed: int, drafted: int, accepted: int, features: Array,
    cost: float,
) -> None:  # fmt: skip
    if params[6] > 0.0:
        # The next draft was launched before this outcome was known.
        state[3] = state[0]
    if params[_TIERS + int(state[0])] > 0.0:
        state[1] = (1.0 - params[0]) * state[1] + params[0] * accepted
    state[2] += 1.0
    over = state[2] - params[2]
    if over > 0.0 and over % params[1] == 0.0:
        state[0] = next_tier(params, state)
    if params[6] == 0.0:
        state[3] = state[0]


@checked
def ema_tiers(
    tiers: str | int = "1/3/5/7",
    start: int | None = None,
    weight: Share = 0.2,
    interval: Count = 5,
    warmup: Wait = 10,
    down: Shift = -0.25,
    up: Shift = 0.0,
    scope: Scope = "stream",
    ceiling: Annotated[float, Meta(ge=0, le=255)] = 0.0,
    lag: bool = False,
) -> Policy:
    """SGLang's adaptive steps: a draft length out of tiers, by an average of accepted tokens.

    After a round with a accepted tokens e = (1 - weight) e + weight a, except at tier 0. Then,
    every `interval` rounds after `warmup`: from tier 0 one up, always, with e = tier - 1 if e < 0;
    from others down while e <= below - 0.5 + down (0.5 + down if the tier below is 0), or else up
    while e > tier - 0.5 + up.

    e starts at `start` - 1, start (default: the middle tier) is a tier. A tier deeper than the
    recording drafts as deep as it goes. As released: the defaults are those of batch size 1; one
    state for all requests, hence scope 'stream'.

    `ceiling` is ceiling_coeff, 0 (off) as released: a tier that is no step up goes down to at most
    max(1, ceil(ceiling e)). `lag`: a decision takes effect one round later, as under SGLang's
    overlap scheduler (on unless --disable-overlap-schedule), which launches a batch before the
    outcome of the one before is processed.

    Source: sgl-project/sglang, srt/speculative/adaptive_spec_params.py at 015c872.
    """
    settings = dict(locals()) | {"tiers": str(tiers)}
    lengths = check_lengths("ema_tiers", "tiers", tiers)
    if start is not None and start not in lengths:
        raise PolicyError(f"ema_tiers: start is {start!r}, expected one of the tiers {tiers}")
    first = len(lengths) // 2 if start is None else lengths.index(start)
    params = (weight, interval, warmup, down, up, ceiling, lag, *lengths)
    state0 = (first, lengths[first] - 1.0, 0.0, first)
    name = policy_name("ema_tiers", settings, ema_tiers)
    return Policy(name, _tier_more, _tier_observe, params, state0, scope=scope)


Price = Literal["measured", "released"]
_PRICES, _DEPTHS = 5, 5
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
        reach *= max(_LEAST, min(_MOST, state[_DEPTHS + 3 * (k - 1)]))
        tokens += reach
        goodput = tokens / params[_PRICES + k]
        if k >= params[3] and goodput >= best:
            choice, best = k, goodput
    return choice if choice > 0 else int(params[3])


def _goodput_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0 and state[4] > 0.0:
        if state[1] > 0.0:
            state[1] -= 1.0
            state[0] = state[3]
        else:
            state[0] = best_goodput(params, state)
            if abs(state[0] - state[3]) > 1.0:
                state[1], state[3] = params[2], state[0]
    return slot < state[0], True


def _goodput_observe(
    params: Array, state: Array, computed: int, drafted: int, accepted: int, features: Array,
    cost: float,
) -> None:  # fmt: skip
    if drafted == 0:
        return
    for j in range(min(accepted + 1, drafted)):
        state[_DEPTHS + 3 * j + 1] += 1.0
        if j < accepted:
            state[_DEPTHS + 3 * j + 2] += 1.0
    state[2] += 1.0
    if state[2] < params[1]:
        return
    state[2], state[4] = 0.0, state[4] + 1.0
    for j in range(int(params[4])):
        at = _DEPTHS + 3 * j
        if state[at + 1] > 0.0:
            # As released: the other form of an average rounds differently, and ties are decided.
            state[at] += params[0] * (state[at + 2] / state[at + 1] - state[at])
        state[at + 1], state[at + 2] = 0.0, 0.0


@checked
def goodput(
    price: Price = "measured",
    weight: Share = 0.3,
    prior: Share = 0.85,
    window: Count = 10,
    cooldown: Wait = 2,
    shortest: Draft = 0,
    c: Annotated[float, Meta(ge=0, le=1000)] = 0.1144,
    scope: Scope = "stream",
) -> DeferredPolicy:
    """vLLM's proposed adaptive K: the k of most expected tokens per price of a round.

    k = argmax (1 + a_1 + a_1 a_2 + ... + a_1 ... a_k) / price[k], a_j the probability that token j
    is accepted given those before it, within [0.001, 0.999]. a_j starts at `prior`. After each
    `window` verified drafts a_j += weight (accepted / reached - a_j), where any draft reached token
    j. Until the first window is full the rule drafts the longest. Plain decoding counts 1; ties go
    to the longer draft; without a gain k is `shortest`. A change of k by more than 1 holds for
    `cooldown` rounds. At k = 0 nothing is learned, so it stays there: take `shortest` 1 to probe.

    price[k] is overhead + draft[k] + verify[k] of (trace, cost), over that at k = 0 (`measured`,
    ours), or c k + 1 + 0.002, c of a 0.5B drafter on an RTX 4050 (`released`).

    Source: vllm-project/vllm, pull requests 44336 (closed) and 47111 (open), `_compute_adaptive_k`
    in v1/core/sched/scheduler.py; rules at cfee1b19, the length that a cooldown compares with at
    fc46777. One state for all requests (scope 'stream'). The engine applies k one step later, which
    is left out. PolicyError when resolved for a cost model shorter than the trace's K.
    """
    settings = dict(locals())
    name = policy_name("goodput", settings, goodput)
    return DeferredPolicy(name, partial(_planned_goodput, name, settings))


def _planned_goodput(name: str, settings: dict[str, Any], trace: Trace, cost: CostModel) -> Policy:
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
    return Policy(name, _goodput_more, _goodput_observe, params, state0, scope=settings["scope"])


POLICIES = (
    PolicyKind(
        hf_heuristic, "outcomes", "transformers", "last round",
        "all accepted: n + 2, else n - 1, at least 1", "start 5",
        "as released; start 20 in newer versions",
        examples=("hf_heuristic:2", "hf_heuristic:3,transient=true"),
        space={"start": Option(tuple(range(1, 21))), "transient": FLAG},
    ),
    PolicyKind(
        two_thresholds, "outcomes", "servers", "accepted / drafted",
        "above one threshold one more, below another one less", "0.4 and 0.8, every 128 drafts",
        "unverified",
        examples=("two_thresholds:attempts=2,start=1", "two_thresholds:0.3,0.5,1,scope=sequence"),
        space={
            "low": Real(0.05, 0.5), "high": Real(0.5, 0.95),
            "attempts": Option((8, 16, 32, 64, 128)), "start": Option((1, 2, 3, 4, 5)),
            "scope": SCOPE,
        },
    ),
    PolicyKind(
        ema_tiers, "outcomes", "SGLang", "average accepted length",
        "tiers up and down, with thresholds", "1/3/5/7, weight 0.2, every 5 rounds after 10",
        "as released for batch size 1; `lag=true` under its overlap scheduler",
        examples=(
            "ema_tiers:0/1/3,interval=1,warmup=1",
            "ema_tiers:weight=0.9,interval=2,warmup=0,scope=sequence,ceiling=1.5,lag=true",
        ),
        space={
            "tiers": LENGTHS, "weight": Real(0.02, 1, log=True), "interval": ROUNDS,
            "warmup": Option((0, 5, 10, 20)), "down": Real(-0.5, 0.5), "up": Real(-0.5, 0.5),
            "scope": SCOPE,
        },
    ),
    PolicyKind(
        goodput, "costs", "vLLM, pull requests 44336 and 47111",
        "acceptance by position, averaged", "the length of most expected tokens per price",
        "weight 0.3, prior 0.85, window 10, cooldown 2",
        "measured price (default), or `released`: 1.002 + 0.1144 K",
        examples=("goodput:window=1", "goodput:released,window=2,shortest=1,scope=sequence"),
        space={
            "price": Option(get_args(Price)), "weight": Real(0.02, 1, log=True),
            "prior": SHARE, "window": ROUNDS, "cooldown": Option((0, 2, 5, 10)),
            "shortest": Option((0, 1)), "scope": SCOPE,
        },
    ),
)  # fmt: skip

"""Draft lengths in tiers that follow an average of the accepted length (SGLang)."""

import math

from simspec.numerics.compile import cached_njit
from simspec.policy.arguments import (
    check_flag,
    check_integer,
    check_lengths,
    check_number,
    check_scope,
    policy_name,
)  # fmt: skip
from simspec.policy.policy import Array, Go, Policy, PolicyError
from simspec.policy.threshold import averaged
from simspec.policy_kind import LENGTHS, ROUNDS, SCOPE, Option, PolicyKind, Real

_HEAD = 7
# params: weight of a new round, interval, warm-up, down, up, ceiling, lag, then the tiers.
# state: index of the decided tier, average, rounds, index of the tier in use.


@cached_njit
def next_tier(params: Array, state: Array) -> int:
    """Index of the tier after the one in the state; sets the average where a tier of 0 has none."""
    tiers, i, average = params[_HEAD:], int(state[0]), state[1]
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


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    return slot < params[_HEAD + int(state[3])], True


def _observe(
    params: Array,
    state: Array,
    computed: int,
    drafted: int,
    accepted: int,
    features: Array,
    cost: float,
) -> None:
    if params[6] > 0.0:
        # The next draft was launched before this outcome was known.
        state[3] = state[0]
    if params[_HEAD + int(state[0])] > 0.0:
        state[1] = averaged(state[1], accepted, params[0])
    state[2] += 1.0
    over = state[2] - params[2]
    if over > 0.0 and over % params[1] == 0.0:
        state[0] = next_tier(params, state)
    if params[6] == 0.0:
        state[3] = state[0]


def ema_tiers(  # noqa: PLR0913
    tiers: str = "1/3/5/7",
    start: int | None = None,
    weight: float = 0.2,
    interval: int = 5,
    warmup: int = 10,
    down: float = -0.25,
    up: float = 0.0,
    scope: str = "stream",
    ceiling: float = 0.0,
    lag: bool = False,
) -> Policy:
    """SGLang's adaptive steps: a draft length out of tiers, by an average of accepted tokens.

    After a round with a accepted tokens e = (1 - weight) e + weight a, except at tier 0. Then,
    every `interval` rounds after `warmup`:

    | tier             | next                                                                  |
    | ---------------- | --------------------------------------------------------------------- |
    | 0                | one up, always; e = tier - 1 if e < 0                                 |
    | others, downward | while e <= below - 0.5 + down (0.5 + down if the tier below is 0)     |
    | else upward      | while e > tier - 0.5 + up                                             |

    e starts at `start` - 1, start (default: the middle tier) is a tier. A tier deeper than the
    recording drafts as deep as it goes. As released: the defaults are those of batch size 1; one
    state for all requests, hence scope 'stream'.

    `ceiling` is ceiling_coeff, 0 (off) as released: a tier that is no step up goes down to at most
    max(1, ceil(ceiling e)). `lag`: a decision takes effect one round later, as under SGLang's
    overlap scheduler (on unless --disable-overlap-schedule), which launches a batch before the
    outcome of the one before is processed. PolicyError for values outside their ranges.

    Source: sgl-project/sglang, srt/speculative/adaptive_spec_params.py at 015c872.
    """
    lengths = check_lengths("ema_tiers", "tiers", tiers)
    if start is not None and (type(start) is not int or start not in lengths):
        raise PolicyError(f"ema_tiers: start is {start!r}, expected one of the tiers {tiers}")
    check_number("ema_tiers", "weight", weight, 0, 1)
    check_integer("ema_tiers", "interval", interval, 1, 10**6)
    check_integer("ema_tiers", "warmup", warmup, 0, 10**6)
    for name, value in (("down", down), ("up", up)):
        check_number("ema_tiers", name, value, -255, 255)
    check_number("ema_tiers", "ceiling", ceiling, 0, 255)
    check_flag("ema_tiers", "lag", lag)
    check_scope("ema_tiers", scope)
    first = len(lengths) // 2 if start is None else lengths.index(start)
    settings = {
        "tiers": str(tiers), "start": start, "weight": weight, "interval": interval,
        "warmup": warmup, "down": down, "up": up, "scope": scope, "ceiling": ceiling,
        "lag": lag,
    }  # fmt: skip
    params = (weight, interval, warmup, down, up, ceiling, lag, *lengths)
    state0 = (first, lengths[first] - 1.0, 0.0, first)
    name = policy_name("ema_tiers", settings, ema_tiers)
    return Policy(name, _draft_more, _observe, params, state0, scope=scope)


POLICIES = (
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
)  # fmt: skip

"""Draft lengths in tiers that follow an average of the accepted length (SGLang)."""

import math
from functools import partial
from typing import Any

import numpy as np

from simspec.numerics.compile import cached_njit
from simspec.policy.arguments import (
    changed_settings,
    check_flag,
    check_integer,
    check_lengths,
    check_number,
    check_scope,
    policy_name,
)  # fmt: skip
from simspec.policy.batch import BatchPolicy, BatchRule, BatchStart, BatchStep
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
    accepted: float,
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


def ema_tiers(
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


SLOTS = {"1": "1/3/5/7", "8": "0/1/3", "32": "0/1", "64": "0"}
"""SGLang's tiers by batch size; `down` is -0.25 in the first slot and 0 in the others."""


class _Slots(BatchRule):
    def __init__(self, slots: dict[int, Array], delay: int, start: BatchStart) -> None:
        super().__init__(start)
        self.params, self.delay = slots, delay
        middle = {key: (len(params) - _HEAD) // 2 for key, params in slots.items()}
        self.state = {
            key: np.array([middle[key], params[_HEAD + middle[key]] - 1.0, 0.0, 0.0])
            for key, params in slots.items()
        }
        self.waiting: list[tuple[int, float]] = []

    def length(self, requests: int) -> int:
        key = max((key for key in self.params if key <= requests), default=min(self.params))
        return min(int(self.params[key][_HEAD + int(self.state[key][0])]), self.start.K)

    def observe(self, step: BatchStep, drafted: Any, accepted: Any, seconds: float) -> None:
        requests = len(accepted)
        key = max((key for key in self.params if key <= requests), default=min(self.params))
        self.waiting.append((key, sum(accepted.tolist()) / requests))
        if len(self.waiting) > self.delay:
            key, mean = self.waiting.pop(0)
            _observe(self.params[key], self.state[key], 0, 0, mean, np.empty((0, 0)), 0.0)


def ema_slots(
    weight: float = 0.2, interval: int = 5, warmup: int = 10, delay: int = 1, **tiers: str
) -> BatchPolicy:
    """SGLang's adaptive steps of a batch: `ema_tiers` with tiers and an average by batch size.

    ema_slots:1=1/3/5/7,8=0/1/3 gives a batch the slot of the largest size that it reaches; default:
    SLOTS, as released. Each slot has its average, of the mean accepted length of its batches.
    delay: 1, as with SGLang's overlapped scheduler, which launches the next batch before it reads
    the outcome; 0 without. Slots start at their middle tier. PolicyError for values outside their
    ranges.

    Source: sgl-project/sglang, srt/speculative/adaptive_spec_params.py at 015c872.
    """
    check_number("ema_slots", "weight", weight, 0, 1)
    check_integer("ema_slots", "interval", interval, 1, 10**6)
    check_integer("ema_slots", "warmup", warmup, 0, 10**6)
    check_integer("ema_slots", "delay", delay, 0, 16)
    if not all(key.isascii() and key.isdigit() and int(key) for key in tiers):
        raise PolicyError(
            f"ema_slots: {', '.join(tiers)} is given, expected batch sizes such as 1=1/3/5/7"
        )
    lengths = {
        int(key): check_lengths("ema_slots", key, value)
        for key, value in sorted((tiers or SLOTS).items(), key=lambda item: int(item[0]))
    }
    slots = {
        key: np.array((weight, interval, warmup, -0.25 * (i == 0), 0, 0, 0, *values), np.float64)
        for i, (key, values) in enumerate(lengths.items())
    }
    settings = {"weight": weight, "interval": interval, "warmup": warmup, "delay": delay}
    stated = [f"{key}={'/'.join(map(str, values))}" for key, values in lengths.items()]
    changed = changed_settings(settings, ema_slots) + (stated if tiers else [])
    name = f"ema_slots:{','.join(changed)}" if changed else "ema_slots"
    return BatchPolicy(name, partial(_Slots, slots, delay))


BATCH_POLICIES = (
    PolicyKind(
        ema_slots, "batches", "SGLang", "mean accepted length of the batch",
        "tiers up and down, with thresholds, by batch size",
        "1/3/5/7 from 1, 0/1/3 from 8, 0/1 from 32, 0 from 64", "as released",
        examples=("ema_slots", "ema_slots:interval=1,warmup=1,delay=0,1=0/1/3,4=0/1"),
    ),
)  # fmt: skip
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

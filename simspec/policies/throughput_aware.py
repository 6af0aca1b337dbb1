"""Draft lengths of the best windowed throughput (SGLang)."""

from functools import partial
from typing import Any

from simspec.cost.model import CostModel
from simspec.numerics.compile import cached_njit
from simspec.policy.arguments import (
    check_integer,
    check_lengths,
    check_option,
    check_scope,
    policy_name,
)  # fmt: skip
from simspec.policy.policy import Array, Go, Policy, PolicyError
from simspec.policy.seconds import planned_seconds, within_depth
from simspec.policy_kind import LENGTHS, ROUNDS, SCOPE, DeferredPolicy, Option, PolicyKind
from simspec.trace.trace import Trace

VARIANTS = ("released", "geometric")
_HEAD, _STATE = 4, 2
# params: window, interval, 1 for geometric, number of lengths n, the lengths, the seconds of a
# round of each. state: index of the length, rounds; then per position: entries in its window,
# entries ever, the window.


@cached_njit
def rate(params: Array, state: Array, position: int) -> float:
    """Share of the position's window that was accepted; -1 where the window is empty."""
    window = int(params[0])
    base = _STATE + position * (2 + window)
    count = int(state[base])
    if count == 0:
        return -1.0
    total = 0.0
    for i in range(count):
        total += state[base + 2 + i]
    return total / count


@cached_njit
def best_length(params: Array, state: Array) -> int:
    """Index of the length of most expected tokens per second; ties go to the shorter one."""
    n = int(params[3])
    best, best_rate, accepted, first, last, known = int(state[0]), -1.0, 0.0, 0.0, 0.0, 0
    for i in range(n):
        while known < params[_HEAD + i]:
            here = rate(params, state, known)
            if here < 0.0:
                if known == 0:
                    return best
                if known == 1:
                    here = first * first if params[2] > 0.0 else first
                elif first <= 0.0:
                    here = 0.0
                else:
                    here = max(0.0, min(last, last * (last / first) ** (1.0 / (known - 1))))
            if known == 0:
                first = here
            last = here
            accepted += here
            known += 1
        # As released: 1 is added to the sum, which decides ties.
        throughput = (1.0 + accepted) / params[_HEAD + n + i]
        if throughput > best_rate:
            best, best_rate = i, throughput
    return best


@cached_njit
def windows_full(params: Array, state: Array, positions: int) -> bool:
    """Whether the windows of the first positions are full."""
    full = True
    for j in range(positions):
        full = full and state[_STATE + j * (2 + int(params[0]))] >= params[0]
    return full


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
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
    window, length = int(params[0]), int(params[_HEAD + int(state[0])])
    for j in range(min(drafted, length)):
        base = _STATE + j * (2 + window)
        state[base + 2 + int(state[base + 1]) % window] = 1.0 if accepted > j else 0.0
        state[base] = min(state[base] + 1.0, params[0])
        state[base + 1] += 1.0
    state[1] += 1.0
    if state[1] % params[1] != 0.0 or not windows_full(params, state, length):
        return
    best = best_length(params, state)
    deepest = int(params[_HEAD + int(params[3]) - 1])
    for j in range(int(params[_HEAD + best]), deepest):
        if best < state[0]:
            base = _STATE + j * (2 + window)
            state[base], state[base + 1] = 0.0, 0.0
    state[0] = best


def throughput_aware(
    variant: str = "released",
    lengths: str = "1/3/5/7",
    start: int | None = None,
    window: int = 20,
    interval: int = 10,
    scope: str = "stream",
) -> DeferredPolicy:
    """SGLang's throughput-aware steps: the length of most expected tokens per modelled second.

    p_j is the share of the last `window` drafts of at least j tokens that had token j accepted.
    Every `interval` rounds, if the windows of all tokens of the current length are full:

    k = argmax (1 + p_1 + ... + p_k) / seconds[k], seconds of (trace, cost) without backlog

    A shorter k forgets the windows of later positions. A position j without data is extrapolated:

    | variant   | p_2   | p_j, j > 2                                                           |
    | --------- | ----- | -------------------------------------------------------------------- |
    | released  | p_1   | p_(j-1) min(1, (p_(j-1) / p_1) ^ (1 / (j - 2))), or 0 if p_1 is 0    |
    | geometric | p_1^2 | the same                                                             |

    As released, a rule at length 1 expects every token to be accepted as often as the first, and
    leaps to the longest draft; `geometric` is ours. `start`: default the middle length. Lengths
    deeper than the recording are dropped. A position that the budget kept from being drafted gets
    no entry. One state for all requests, so scope 'stream'; no length 0. PolicyError for values
    outside their ranges, and when resolved if no length is left.

    Source: sgl-project/sglang, srt/speculative/throughput_aware_controller.py at 088c5ab and
    throughput_aware_spec_params.py at 2357074; the batch is one sequence here.
    """
    check_option("throughput_aware", "variant", variant, VARIANTS)
    steps = check_lengths("throughput_aware", "lengths", lengths, 1)
    if start is not None and (type(start) is not int or start not in steps):
        raise PolicyError(f"throughput_aware: start is {start!r}, expected one of {lengths}")
    check_integer("throughput_aware", "window", window, 1, 1000)
    check_integer("throughput_aware", "interval", interval, 1, 10**6)
    check_scope("throughput_aware", scope)
    settings = {
        "variant": variant, "lengths": str(lengths), "start": start, "window": window,
        "interval": interval, "scope": scope,
    }  # fmt: skip
    name = policy_name("throughput_aware", settings, throughput_aware)
    return DeferredPolicy(name, partial(_plan, name, steps, settings))


def _plan(
    name: str, steps: tuple[int, ...], settings: dict[str, Any], trace: Trace, cost: CostModel
) -> Policy:
    """The policy with the costs among its parameters."""
    kept = within_depth(name, steps, trace.K)
    seconds = planned_seconds(name, cost, kept[-1])
    start, window = settings["start"], settings["window"]
    first = kept.index(start) if start in kept else len(kept) // 2
    geometric = settings["variant"] == "geometric"
    params = (
        window,
        settings["interval"],
        geometric,
        len(kept),
        *kept,
        *(seconds[k] for k in kept),
    )
    state0 = (first, 0.0, *(0.0,) * (kept[-1] * (2 + window)))
    return Policy(name, _draft_more, _observe, params, state0, scope=settings["scope"])


POLICIES = (
    PolicyKind(
        throughput_aware, "costs", "SGLang", "acceptance by position in a window",
        "the length of most expected tokens per second", "1/3/5/7, window 20, every 10 rounds",
        "`released` (default), or `geometric`: ours",
        examples=(
            "throughput_aware:window=2,interval=2",
            "throughput_aware:geometric,1/2/4,window=1,interval=1,scope=sequence",
        ),
        space={
            "variant": Option(VARIANTS), "lengths": Option(LENGTHS.values[:5]), "window": ROUNDS,
            "interval": ROUNDS, "scope": SCOPE,
        },
    ),
)  # fmt: skip

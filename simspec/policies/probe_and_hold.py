"""Draft lengths chosen in short tests by tokens gained per cost, and held (Cascade)."""

from functools import partial
from typing import Any

from simspec.cost.model import CostModel
from simspec.policy.arguments import check_integer, check_lengths, check_scope, policy_name
from simspec.policy.policy import Array, Go, Policy, PolicyError
from simspec.policy.seconds import planned_seconds, within_depth
from simspec.policy_kind import SCOPE, DeferredPolicy, Option, PolicyKind
from simspec.trace.trace import Trace

_HEAD = 3
_TIE = 1.0 + 1e-12  # a difference of rounding is a tie
# params: rounds of a test, rounds of a hold, seconds of a plain round, then the lengths as tested.
# state: length, its place among the lengths (-1: held), rounds left, tokens and seconds of the
# test; then of the best length so far: itself, its tokens and seconds.


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
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
    state[2] -= 1.0
    if state[1] >= 0.0:
        state[3] += accepted + 1.0
        state[4] += cost
    if state[2] > 0.0:
        return
    place, lengths = int(state[1]), len(params) - _HEAD
    following = place + 1
    if place < 0:
        following = 0
    else:
        tokens, seconds = state[3], state[4]
        if place == 0 or tokens * state[7] > state[6] * seconds * _TIE:
            state[5], state[6], state[7] = state[0], tokens, seconds
        if place == 0 and tokens * params[2] * _TIE < seconds:
            following = lengths
    state[3], state[4] = 0.0, 0.0
    if following < lengths:
        state[0], state[1], state[2] = params[_HEAD + following], following, params[0]
        return
    pays = state[6] * params[2] * _TIE >= state[7]
    state[0], state[1], state[2] = state[5] if pays else 0.0, -1.0, params[1]


def probe_and_hold(
    lengths: str = "1/2/3/4",
    start: int | None = None,
    test: int = 4,
    hold: int = 16,
    scope: str = "sequence",
) -> DeferredPolicy:
    """Cascade's test and set: the tested length of most utility, or none, held for a long phase.

    utility = (tokens per round) / (seconds per round over those of a plain round), in `test` rounds

    `start` (default: the middle length) is tested first. If its utility is below 1 no token is
    drafted for `hold` rounds; else the other lengths are tested, ascending, and the one of most
    utility is held. Ties go to the length tested first. Then everything is tested again. Seconds
    are the modelled ones of each round; those of a plain round are overhead + draft[0] + verify[0].
    Lengths deeper than the recording are dropped. PolicyError for values outside their ranges, and
    when resolved if no length is left or a round is free.

    Source: Saxena et al., arXiv 2506.20675; its abstract states the rule. Unverified: the numbers
    of rounds, the order of tests (the paper may climb), and that it tests less often after it
    switched off, which is left out.
    """
    steps = check_lengths("probe_and_hold", "lengths", lengths, 1)
    if start is not None and (type(start) is not int or start not in steps):
        raise PolicyError(f"probe_and_hold: start is {start!r}, expected one of {lengths}")
    check_integer("probe_and_hold", "test", test, 1, 10**6)
    check_integer("probe_and_hold", "hold", hold, 1, 10**6)
    check_scope("probe_and_hold", scope)
    settings = {
        "lengths": str(lengths), "start": start, "test": test, "hold": hold, "scope": scope
    }  # fmt: skip
    name = policy_name("probe_and_hold", settings, probe_and_hold)
    return DeferredPolicy(name, partial(_plan, name, steps, settings))


def _plan(
    name: str, steps: tuple[int, ...], settings: dict[str, Any], trace: Trace, cost: CostModel
) -> Policy:
    """The policy with the seconds of a plain round among its parameters."""
    kept = within_depth(name, steps, trace.K)
    start = settings["start"] if settings["start"] in kept else kept[len(kept) // 2]
    order = (start, *(k for k in kept if k != start))
    params = (settings["test"], settings["hold"], planned_seconds(name, cost, kept[-1])[0], *order)
    state0 = (start, 0.0, settings["test"], 0.0, 0.0, 0.0, 0.0, 0.0)
    return Policy(name, _draft_more, _observe, params, state0, scope=settings["scope"])


POLICIES = (
    PolicyKind(
        probe_and_hold, "costs", "Cascade", "tokens per modeled cost in short tests",
        "none if a test does not pay, else the best length, held", "1/2/3/4, tests 4, holds 16",
        "numbers and order of tests unverified",
        examples=("probe_and_hold", "probe_and_hold:1/3,test=1,hold=2,scope=stream"),
        space={
            "lengths": Option(("1/2", "1/2/3/4", "1/3/5/7", "2/4/8")),
            "test": Option((1, 2, 4, 8, 16)), "hold": Option((8, 16, 32, 64, 128)),
            "scope": SCOPE,
        },
    ),
)  # fmt: skip

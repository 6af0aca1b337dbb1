"""Draft lengths that change by one after N equal outcomes in a row (proposed for llama.cpp)."""

from simspec.policy.arguments import (
    check_flag,
    check_integer,
    check_scope,
    policy_name,
)  # fmt: skip
from simspec.policy.policy import Array, Go, Policy, PolicyError
from simspec.policy_kind import SCOPE, Option, PolicyKind

# params: N, shortest, longest, bias, 1 to compute a token too many. state: n, successes, failures.


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if params[4] > 0.0 and state[0] < min(params[2], len(features)):
        return slot <= state[0], slot <= state[0]
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
    if accepted >= state[0] - params[3]:
        state[1], state[2] = state[1] + 1.0, 0.0
    else:
        state[1], state[2] = 0.0, state[2] + 1.0
    if state[1] >= params[0]:
        state[0] = max(state[0], min(state[0] + 1.0, params[2], len(features)))
        state[1] = 0.0
    elif state[2] >= params[0]:
        state[0], state[2] = max(state[0] - 1.0, params[1]), 0.0


def in_a_row(
    n: int = 11,
    shortest: int = 1,
    longest: int = 255,
    bias: int = 0,
    wasteful: bool = False,
    scope: str = "stream",
) -> Policy:
    """llama.cpp's proposed adaptive length: one more after n successes in a row, one less after n
    failures.

    A round succeeds if it accepts its draft length minus `bias` tokens or more. Lengths stay in
    shortest..longest and within the recording, and start at `shortest`. A run of n starts anew at
    each change, also at the bounds. A draft cut short by the budget counts against the length it
    was meant to have. `wasteful`: as in the proposal's branch, the drafter computes one token more
    than is submitted, except at the longest draft. There, a draft of 0 tokens is no success, so it
    never ends; here it is one. Scope 'stream': the branch keeps the length of a slot across
    requests. PolicyError for values outside their ranges.

    Source: ggml-org/llama.cpp pull request 25726 (open; off by default, n = 11 recommended), and
    common/speculative.cpp of Us5rName/llama.cpp at 63d239d, which adds further conditions.
    """
    check_integer("in_a_row", "n", n, 1, 10**6)
    check_integer("in_a_row", "shortest", shortest, 0, 255)
    check_integer("in_a_row", "longest", longest, 0, 255)
    check_integer("in_a_row", "bias", bias, 0, 255)
    check_flag("in_a_row", "wasteful", wasteful)
    check_scope("in_a_row", scope)
    if shortest > longest:
        raise PolicyError(
            f"in_a_row: shortest is {shortest}, longest {longest}, expected shortest <= longest"
        )
    settings = {
        "n": n, "shortest": shortest, "longest": longest, "bias": bias, "wasteful": wasteful,
        "scope": scope,
    }  # fmt: skip
    name = policy_name("in_a_row", settings, in_a_row)
    params = (n, shortest, longest, bias, wasteful)
    return Policy(name, _draft_more, _observe, params, (shortest, 0.0, 0.0), scope=scope)


POLICIES = (
    PolicyKind(
        in_a_row, "outcomes", "llama.cpp, pull request 25726", "full accepts in a row",
        "n successes: one more; n failures: one less", "n 11, from 1",
        "as proposed; `wasteful=true` adds the extra draft step of its branch",
        examples=("in_a_row:1,0,3", "in_a_row:2,wasteful=true,scope=sequence"),
        space={
            "n": Option((1, 2, 3, 5, 8, 11, 16)), "shortest": Option((0, 1, 2)),
            "longest": Option((2, 3, 4, 6, 8, 255)), "bias": Option((0, 1, 2)), "scope": SCOPE,
        },
    ),
)  # fmt: skip

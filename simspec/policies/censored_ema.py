"""Draft lengths by an average that knows full accepts are only lower bounds (a llama.cpp fork)."""

import numpy as np

from simspec.policy.arguments import check_integer, check_scope, policy_name
from simspec.policy.policy import Array, Go, Policy
from simspec.policy_kind import SCOPE, Option, PolicyKind

# params: shortest, longest. state: the average, a float32; the round's length.


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        longest = min(params[1], float(len(features)))
        # C's lround takes halves away from zero.
        state[1] = max(params[0], min(longest, np.floor(state[0] + 0.5)))
        state[0] = min(state[0], longest)
    return slot < state[1], True


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
    average = np.float32(state[0])
    if accepted >= state[1]:
        state[0] = average + np.float32(1.0)
    else:
        state[0] = np.float32(0.75) * average + np.float32(0.25) * np.float32(accepted)


def censored_ema(shortest: int = 1, longest: int = 255, scope: str = "sequence") -> Policy:
    """A llama.cpp fork's --spec-draft-adaptive: the average accepted length, probing upward.

    k = e rounded, halves up, in shortest..longest and the recording; then e = min(e, longest).
    After a round that accepts a tokens of a draft meant to be k long:

    e = e + 1 if a >= k, which tells only that more might have been accepted; else 0.75 e + 0.25 a

    e starts at 2 in each request. In float32. A draft cut short by the budget cannot accept k, and
    counts as partial. Rounds without a draft change nothing. PolicyError for values outside their
    ranges.

    Source: LaurentZuijdwijk/llama.cpp, common/speculative.cpp at b57d51d, read and not run; not
    proposed to llama.cpp. A compiler that fuses the multiplication and addition rounds differently.
    """
    check_integer("censored_ema", "shortest", shortest, 1, 255)
    check_integer("censored_ema", "longest", longest, 1, 255)
    check_scope("censored_ema", scope)
    settings = {"shortest": shortest, "longest": longest, "scope": scope}
    name = policy_name("censored_ema", settings, censored_ema)
    params = (shortest, longest)
    return Policy(name, _draft_more, _observe, params, (2.0, 0.0), scope=scope)


POLICIES = (
    PolicyKind(
        censored_ema, "outcomes", "a llama.cpp fork", "average accepted length",
        "a full accept adds 1, a partial one is averaged", "from 2, weight 0.25",
        "as in the fork; read, not run",
        examples=("censored_ema", "censored_ema:longest=3,scope=stream"),
        space={
            "shortest": Option((1, 2, 3)), "longest": Option((3, 4, 6, 8, 16, 255)),
            "scope": SCOPE,
        },
    ),
)  # fmt: skip

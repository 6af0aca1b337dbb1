"""Draft lengths on a staircase of widening steps (proposed for llama.cpp's n-gram drafts)."""

from simspec.numerics.compile import cached_njit
from simspec.policy.arguments import check_integer, check_scope, policy_name
from simspec.policy.policy import Array, Go, Policy
from simspec.policy_kind import SCOPE, Option, PolicyKind

_CLIMB = 2
# params: shortest, longest, then the climbs from lengths 1..6 (2 beyond).
# state: length (-1: none yet), full accepts in a row.


@cached_njit
def longer(n: float, longest: float) -> float:
    """One step up."""
    if n >= 32.0:
        return longest
    step = 8.0 if n >= 16.0 else 4.0 if n >= 8.0 else 2.0 if n >= 4.0 else 1.0
    return min(n + step, longest)


@cached_njit
def shorter(n: float, shortest: float) -> float:
    """One step down."""
    step = 16.0 if n > 32.0 else 8.0 if n > 16.0 else 4.0 if n > 8.0 else 2.0 if n > 4.0 else 1.0
    return max(n - step, shortest)


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if state[0] < 0.0:
        state[0] = min(params[0], params[1], len(features))
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
    n, longest = state[0], min(params[1], float(len(features)))
    full = accepted == drafted
    state[1] = state[1] + 1.0 if full and drafted >= n else 0.0
    if drafted < n:
        return
    if not full:
        state[0] = min(n, shorter(n, params[0]))
    elif n >= longest:
        state[1] = 0.0
    elif state[1] >= (params[_CLIMB + int(n) - 1] if n <= 6.0 else 2.0):
        state[0], state[1] = longer(n, longest), 0.0


def staircase(shortest: int = 3, longest: int = 255, scope: str = "sequence") -> Policy:
    """llama.cpp's proposed staircase: longer after full accepts in a row, shorter at each miss.

    | length n | one step up | length n | one step down |
    | -------- | ----------- | -------- | ------------- |
    | 1..3     | 1           | 2..4     | 1             |
    | 4..7     | 2           | 5..8     | 2             |
    | 8..15    | 4           | 9..16    | 4             |
    | 16..31   | 8           | 17..32   | 8             |
    | 32..     | to longest  | 33..     | 16            |

    Up after 2, 4, 10, 6, 4, 3 full accepts in a row at n = 1..6, 2 beyond. A draft cut short ends
    the row and changes nothing else. The length starts at min(shortest, longest), and stays within
    them and the recording. PolicyError for values outside their ranges.

    Source: ggml-org/llama.cpp pull request 27210 at c1312f2, for n-gram drafts where an MTP head
    drafts otherwise; unmerged. `shortest` is the head's width there, `longest` that of n-grams.
    """
    check_integer("staircase", "shortest", shortest, 1, 255)
    check_integer("staircase", "longest", longest, 1, 255)
    check_scope("staircase", scope)
    settings = {"shortest": shortest, "longest": longest, "scope": scope}
    name = policy_name("staircase", settings, staircase)
    params = (shortest, longest, 2, 4, 10, 6, 4, 3)
    return Policy(name, _draft_more, _observe, params, (-1.0, 0.0), scope=scope)


POLICIES = (
    PolicyKind(
        staircase, "outcomes", "llama.cpp, pull request 27210", "full accepts in a row",
        "up by widening steps, down at each miss", "from 3", "as proposed, unmerged",
        examples=("staircase:1,scope=stream",),
        space={
            "shortest": Option((1, 2, 3, 4)), "longest": Option((3, 4, 6, 8, 16, 255)),
            "scope": SCOPE,
        },
    ),
)  # fmt: skip

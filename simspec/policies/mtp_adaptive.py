"""Draft lengths by a bucket: full accepts fill it, rejections drain it (proposed for llama.cpp)."""

from simspec.numerics.compile import cached_njit
from simspec.policy.arguments import check_integer, check_option, check_scope, policy_name
from simspec.policy.policy import Array, Go, Policy
from simspec.policy_kind import SCOPE, Option, PolicyKind

VARIANTS = ("streak", "single", "bucket", "carry")
_CLIMB = 3
# params: variant, shortest, longest, then the climbs from lengths 1..6 (2 beyond).
# state: length (-1: none yet), level of the bucket or of the climb, drop (streak alone).


@cached_njit
def floor_of(params: Array, n: float) -> float:
    """The bucket's level at which it starts at length n, and the drop that shortens a streak's."""
    return max(20.0, (4.0 if params[0] >= 2.0 else 5.0) * n)


@cached_njit
def climb_of(params: Array, n: float) -> float:
    """How far the level is from a longer draft when it starts at length n."""
    if params[0] >= 2.0:
        return 20.0
    return params[_CLIMB + int(n) - 1] if n <= 6.0 else 2.0


@cached_njit
def moved_streak(params: Array, state: Array, longest: float, drafted: int, accepted: int) -> None:
    """Full accepts in a row lengthen; rejected tokens since the last full accept shorten."""
    n = state[0]
    if accepted == drafted:
        state[2] = 0.0
        if n < longest:
            state[1] += 1.0
            if state[1] >= climb_of(params, n):
                state[0], state[1] = n + 1.0, 0.0
        return
    state[1] = 0.0
    if n > params[1]:
        state[2] += drafted - accepted
        if state[2] >= floor_of(params, n):
            state[0], state[2] = n - 1.0, 0.0


@cached_njit
def moved_bucket(params: Array, state: Array, longest: float, drafted: int, accepted: int) -> None:
    """The bucket overflows to a longer draft, and runs dry to a shorter one."""
    n, level = state[0], state[1]
    if params[0] >= 2.0:
        level += max(1.0, accepted - 1.0) if accepted >= n else accepted - n
    elif accepted == drafted and drafted < n:
        level -= (n + 1.0 - accepted) // 2.0
    else:
        level += accepted + 1.0 - n
    floor, carries = floor_of(params, n), params[0] == 3.0
    top = floor + climb_of(params, n)
    if level >= top:
        over, level = min(level - top, n), top
        if n < longest:
            n += 1.0
            level = floor_of(params, n) + (over if carries else 0.0)
    elif level <= 0.0:
        under, level = level - floor, 0.0
        if n > params[1]:
            n -= 1.0
            level = floor_of(params, n) + (under + 20.0 if carries else 0.0)
    state[0], state[1] = n, level


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if state[0] < 0.0:
        # `longest` is known with the recording's depth.
        state[0] = min(params[1], params[2], len(features))
        state[1] = 0.0 if params[0] == 0.0 else floor_of(params, state[0])
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
    longest = min(params[2], float(len(features)))
    if params[0] == 0.0:
        moved_streak(params, state, longest, drafted, accepted)
    else:
        moved_bucket(params, state, longest, drafted, accepted)


def mtp_adaptive(
    variant: str = "carry", shortest: int = 3, longest: int = 255, scope: str = "sequence"
) -> Policy:
    """llama.cpp's proposed draft-mtp-adaptive: a level that moves the draft length by one.

    n is the length, d tokens were drafted (fewer than n where the budget cuts), a accepted. The
    length starts at min(shortest, longest), and stays within them and the recording.

    | variant | commit  | level                                                                  |
    | ------- | ------- | ---------------------------------------------------------------------- |
    | streak  | 77cd0e8 | C(n) drafts accepted in full lengthen; max(5 n, 20) rejections shorten |
    | single  |         | += a + 1 - n, or -= (n + 1 - a) // 2 if a = d < n; top D + C(n)        |
    | bucket  | dc6f2aa | += max(1, a - 1) if a >= n, else a - n; top D + 20                     |
    | carry   | 1207c1c | that of bucket; what overflows or is missing moves with the length     |

    A bucket starts at D: max(5 n, 20) of single, max(4 n, 20) of the last two. At the top it
    lengthens, at 0 it shortens, and starts anew. C(1..6) is 2, 4, 6, 5, 4, 3 of streak, 2, 5, 10,
    5, 4, 3 of single, then 2. `shortest` is --spec-draft-n-min-adaptive, `longest`
    --spec-draft-n-max, the user's. Rounds without a draft change nothing. PolicyError for values
    outside their ranges.

    Source: ggml-org/llama.cpp pull request 27210, open: no release has it; four states of the
    branch. Forks change the constants, and how much a fork's level keeps on the way down is not
    stated: left out.
    """
    check_option("mtp_adaptive", "variant", variant, VARIANTS)
    check_integer("mtp_adaptive", "shortest", shortest, 1, 255)
    check_integer("mtp_adaptive", "longest", longest, 1, 255)
    check_scope("mtp_adaptive", scope)
    settings = {"variant": variant, "shortest": shortest, "longest": longest, "scope": scope}
    name = policy_name("mtp_adaptive", settings, mtp_adaptive)
    climbs = (2, 4, 6, 5, 4, 3) if variant == "streak" else (2, 5, 10, 5, 4, 3)
    params = (VARIANTS.index(variant), shortest, longest, *climbs)
    return Policy(name, _draft_more, _observe, params, (-1.0, 0.0, 0.0), scope=scope)


POLICIES = (
    PolicyKind(
        mtp_adaptive, "outcomes", "llama.cpp, pull request 27210", "accepted and rejected tokens",
        "a bucket that overflows lengthens by one, a dry one shortens", "`carry`, from 3",
        "as proposed, unmerged; four states of the branch",
        examples=(
            "mtp_adaptive:single,shortest=1", "mtp_adaptive:shortest=2",
            "mtp_adaptive:streak,shortest=1,scope=stream",
        ),
        space={
            "variant": Option(VARIANTS), "shortest": Option((1, 2, 3, 4)),
            "longest": Option((3, 4, 6, 8, 16, 255)), "scope": SCOPE,
        },
    ),
)  # fmt: skip

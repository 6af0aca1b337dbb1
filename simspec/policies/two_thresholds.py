"""Draft lengths that change by one where acceptance leaves a band, with a cooldown."""

from simspec.policy.arguments import check_integer, check_number, check_scope, policy_name
from simspec.policy.policy import Array, Go, Policy, PolicyError
from simspec.policy_kind import SCOPE, Option, PolicyKind, Real

# params: low, high, attempts, shortest, longest.
# state: length, drafts, drafted and accepted tokens since the last decision.


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


def two_thresholds(
    low: float = 0.4,
    high: float = 0.8,
    attempts: int = 128,
    start: int = 3,
    shortest: int = 1,
    longest: int = 255,
    scope: str = "stream",
) -> Policy:
    """One token more where most drafted tokens are accepted, one less where few are.

    Every `attempts` drafts, by accepted / drafted tokens since the last decision: above `high` k +
    1, below `low` k - 1, in shortest..longest and the recording. Rounds without a draft are no
    attempts. PolicyError for values outside their ranges.

    Source: servers' own rules with these three numbers, no reference implementation: unverified
    are that tokens are counted, that counts start anew at each decision, and `start`.
    """
    check_number("two_thresholds", "low", low, 0, 1)
    check_number("two_thresholds", "high", high, 0, 1)
    check_integer("two_thresholds", "attempts", attempts, 1, 10**6)
    for key, value in (("start", start), ("shortest", shortest), ("longest", longest)):
        check_integer("two_thresholds", key, value, 1, 255)
    check_scope("two_thresholds", scope)
    if low > high or not shortest <= start <= longest:
        raise PolicyError(
            f"two_thresholds: low {low}, high {high}, lengths {shortest}, {start}, {longest}, "
            "expected low <= high and shortest <= start <= longest"
        )
    settings = {
        "low": low, "high": high, "attempts": attempts, "start": start, "shortest": shortest,
        "longest": longest, "scope": scope,
    }  # fmt: skip
    name = policy_name("two_thresholds", settings, two_thresholds)
    params = (low, high, attempts, shortest, longest)
    return Policy(name, _draft_more, _observe, params, (start, 0.0, 0.0, 0.0), scope=scope)


POLICIES = (
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
)  # fmt: skip

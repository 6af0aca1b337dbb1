"""Draft lengths by how many drafts of a window succeeded (proposed for llama.cpp)."""

from simspec.policy.arguments import check_integer, check_scope, policy_name
from simspec.policy.policy import Array, Go, Policy, PolicyError
from simspec.policy_kind import SCOPE, Option, PolicyKind

_STATE = 6
# params: threshold, positive, negative, history, bias, cooldown, shortest, longest.
# state: length (-1: none yet), tokens since the last change (-1: cooled down), good, bad, entries,
# successes; then the window, of which entry i is at i % history.


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if state[0] < 0.0:
        state[0] = min(params[6], params[7], len(features))
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
    n, threshold, history = state[0], params[0], int(params[3])
    if state[1] > -1.0:
        state[1] += n
        if state[1] >= params[5]:
            state[1] = -1.0
    place = _STATE + int(state[4]) % history
    if state[4] >= history:
        state[5] -= state[place]
    state[place] = 1.0 if accepted >= n - params[4] else 0.0
    state[5] += state[place]
    state[4] += 1.0
    misses = min(state[4], params[3]) - state[5]
    if state[5] >= params[1]:
        state[2], state[3] = min(state[2] + 1.0, threshold), 0.0
    elif misses >= params[2]:
        state[2], state[3] = 0.0, min(state[3] + 1.0, threshold)
    else:
        state[2], state[3] = 0.0, 0.0
    longest = min(params[7], float(len(features)))
    if state[1] == -1.0:
        if state[2] == threshold and n < longest:
            state[:] = 0.0
            state[0] = n + 1.0
        elif state[3] == threshold and n > params[6]:
            state[:] = 0.0
            state[0] = n - 1.0


def rolling_window(
    threshold: int = 11,
    window: str = "24/20/30",
    bias: int = 0,
    cooldown: int = 0,
    shortest: int = 1,
    longest: int = 255,
    scope: str = "stream",
) -> Policy:
    """llama.cpp's proposed rolling window: a longer draft while most of a window's drafts succeed.

    A draft succeeds if it accepts its length minus `bias` tokens or more; one cut short by the
    budget counts against the length it was meant to have. `window` is positive/negative/history:
    a round is good if `positive` of the last `history` drafts succeeded, else bad if `negative`
    failed. After `threshold` good rounds in a row the length grows by one, after as many bad ones
    it shrinks, and everything is forgotten. `cooldown`: tokens of drafts that must come first.
    Lengths stay in shortest..longest and the recording, and start at `shortest`. Rounds without a
    draft change nothing. PolicyError for values outside their ranges.

    Source: common/speculative.cpp of the branch of ggml-org/llama.cpp pull request 25726 at
    2e840da, unmerged. Off there (threshold 0); 11 is what the pull request recommends for its
    earlier form, `in_a_row`. Scope 'stream': the branch keeps a slot's length across requests.
    """
    check_integer("rolling_window", "threshold", threshold, 1, 10**6)
    parts = str(window).split("/")
    if len(parts) != 3 or not all(p.isascii() and p.isdecimal() for p in parts):
        raise PolicyError(
            f"rolling_window: window is {window!r}, expected positive/negative/history such as "
            "24/20/30"
        )
    positive, negative, history = (int(part) for part in parts)
    for key, value in (("positive", positive), ("negative", negative), ("history", history)):
        check_integer("rolling_window", key, value, 1, 1000)
    check_integer("rolling_window", "bias", bias, 0, 255)
    check_integer("rolling_window", "cooldown", cooldown, 0, 10**6)
    check_integer("rolling_window", "shortest", shortest, 1, 255)
    check_integer("rolling_window", "longest", longest, 1, 255)
    check_scope("rolling_window", scope)
    settings = {
        "threshold": threshold, "window": str(window), "bias": bias, "cooldown": cooldown,
        "shortest": shortest, "longest": longest, "scope": scope,
    }  # fmt: skip
    name = policy_name("rolling_window", settings, rolling_window)
    params = (threshold, positive, negative, history, bias, cooldown, shortest, longest)
    state0 = (-1.0, *(0.0,) * (_STATE - 1 + history))
    return Policy(name, _draft_more, _observe, params, state0, scope=scope)


POLICIES = (
    PolicyKind(
        rolling_window, "outcomes", "llama.cpp, branch of pull request 25726",
        "full accepts in a window", "mostly full: one more; mostly not: one less",
        "24 or 20 of 30, 11 rounds in a row", "as proposed, unmerged",
        examples=("rolling_window:1,window=2/2/3", "rolling_window:2,3/1/4,scope=sequence"),
        space={
            "threshold": Option((1, 2, 5, 11)),
            "window": Option(("4/3/5", "8/7/10", "12/12/20", "24/20/30")),
            "bias": Option((0, 1, 2)), "cooldown": Option((0, 20, 100)), "scope": SCOPE,
        },
    ),
)  # fmt: skip

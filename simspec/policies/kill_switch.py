"""Drafting that ends, for good or for a pause, once too little is accepted (TensorRT-LLM)."""

from simspec.policy.arguments import check_integer, check_number, check_scope, policy_name
from simspec.policy.policy import Array, Go, Policy
from simspec.policy_kind import SCOPE, SHARE, Option, PolicyKind

_STATE = 3
# params: k, window, threshold, rounds of a pause (0: for good).
# state: rounds still off (-1: for good), samples, sum of the window, then the window.


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    return state[0] == 0.0 and slot < params[0], True


def _observe(
    params: Array,
    state: Array,
    computed: int,
    drafted: int,
    accepted: int,
    features: Array,
    cost: float,
) -> None:
    if state[0] > 0.0:
        state[0] -= 1.0
    if drafted == 0:
        return
    window = int(params[1])
    place = _STATE + int(state[1]) % window
    share = accepted / drafted
    state[2] += share - state[place]
    state[place] = share
    state[1] += 1.0
    if state[1] >= window and state[2] / window < params[2]:
        state[0] = params[3] if params[3] > 0.0 else -1.0
        state[1:] = 0.0


def kill_switch(
    k: int = 4, window: int = 100, threshold: float = 0.3, scope: str = "stream", pause: int = 0
) -> Policy:
    """TensorRT-LLM's speculation gate: k tokens a round, none ever again below a threshold.

    Each round with a draft adds accepted / drafted. Once there are `window` of them, drafting ends
    for good when the mean of the last `window` is below the threshold. As released: one gate for
    all requests, hence scope 'stream'; 'sequence' switches on again with each sequence. All of k,
    window and threshold are the user's there; the defaults here are an example. PolicyError for
    values outside their ranges.

    Source: NVIDIA/TensorRT-LLM, _torch/speculative/speculation_gate.py. The version of commit
    41080dc averaged the accepted length of completed requests instead, with a threshold in tokens.
    A policy is not told where a request ends, so that one is not offered.

    `pause`: only that number of plain rounds, then the window fills again: a re-probing switch.
    `kill_switch:4,32,0.6,pause=64` has the numbers of FlashML-org/FreeToken pull request 71;
    unverified whether it counts drafts or tokens, and how long its probe is.
    """
    check_integer("kill_switch", "k", k, 0, 255)
    check_integer("kill_switch", "window", window, 1, 10_000)
    check_number("kill_switch", "threshold", threshold, 0, 1)
    check_scope("kill_switch", scope)
    check_integer("kill_switch", "pause", pause, 0, 10**6)
    settings = {
        "k": k, "window": window, "threshold": threshold, "scope": scope, "pause": pause
    }  # fmt: skip
    name = policy_name("kill_switch", settings, kill_switch)
    state0 = (0.0,) * (_STATE + window)
    params = (k, window, threshold, pause)
    return Policy(name, _draft_more, _observe, params, state0, K=k, scope=scope)


POLICIES = (
    PolicyKind(
        kill_switch, "outcomes", "TensorRT-LLM", "accepted / drafted",
        "none ever again, or for `pause` rounds, once the mean of a window is below a threshold",
        "4 tokens, window 100, threshold 0.3",
        "as released since the window counts rounds; earlier versions averaged requests. Their "
        "defaults are the user's; `pause` is another server's, unverified",
        examples=("kill_switch:1,3,0.6", "kill_switch:1,window=2,threshold=0.6,pause=3"),
        space={
            "k": Option(tuple(range(1, 9))), "window": Option((5, 10, 20, 50, 100)),
            "threshold": SHARE, "scope": SCOPE, "pause": Option((0, 16, 64, 256)),
        },
    ),
)  # fmt: skip

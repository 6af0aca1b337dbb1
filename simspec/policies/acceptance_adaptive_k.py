"""The leading depths whose acceptance clears a threshold (proposed for vLLM)."""

from simspec.policy.arguments import check_integer, check_number, check_scope, policy_name
from simspec.policy.policy import Array, Go, Policy, PolicyError
from simspec.policy_kind import SCOPE, SHARE, Option, PolicyKind, Real

_STATE = 3
# params: threshold, window, probe interval, hysteresis, shortest, longest.
# state: k, drafts, steps; then per depth: rate, samples, 1 if off.


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot > 0:
        return slot < state[0], True
    longest = int(min(params[5], len(features)))
    state[0] = longest
    state[2] += 1.0
    probes = params[2] > 0.0 and state[2] % params[2] == 0.0
    if state[1] >= params[1] and not probes:
        k = 0
        while k < longest:
            at = _STATE + 3 * k
            if state[at + 1] > 0.0:
                if state[at + 2] == 0.0 and state[at] < params[0]:
                    state[at + 2] = 1.0
                elif state[at + 2] > 0.0 and state[at] >= params[0] + params[3]:
                    state[at + 2] = 0.0
            if state[at + 2] > 0.0:
                break
            k += 1
        state[0] = max(min(params[4], float(longest)), float(k))
    return state[0] > 0.0, True


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
    for j in range(drafted):
        at = _STATE + 3 * j
        right = 1.0 if j < accepted else 0.0
        if state[at + 1] < params[1]:
            state[at] = (state[at] * state[at + 1] + right) / (state[at + 1] + 1.0)
        else:
            state[at] += 1.0 / params[1] * (right - state[at])
        state[at + 1] += 1.0


def acceptance_adaptive_k(
    threshold: float = 0.4,
    window: int = 256,
    probe: int = 64,
    hysteresis: float = 0.05,
    shortest: int = 0,
    longest: int = 16,
    scope: str = "stream",
) -> Policy:
    """vLLM's proposed AcceptanceAdaptiveK: draft the leading depths accepted often enough.

    r_j is accepted over drafted at depth j: the mean of its first `window` samples, then an average
    of weight 1 / window. A depth is on until r_j < threshold, and on again at r_j >= threshold +
    hysteresis. k is the number of depths before the first that is off, at least `shortest`; depths
    after it keep their state. The longest is drafted until `window` drafts were verified, and in
    each `probe`-th round (0: never). Rounds without a draft add no sample. A draft stops at
    `longest` (vLLM's num_speculative_tokens) and the recording. PolicyError for values outside
    their ranges.

    Source: vllm/v1/spec_decode/dynamic/adaptive.py of a vLLM branch at 9f1044b, unmerged. The
    threshold is the user's there; 0.4 is that of its tests. One state for all requests (scope
    'stream'). Steps that only prefill count towards its probes, and k sizes the draft that the next
    step verifies; both are left out, as is the schedule by batch size that caps k.
    """
    check_number("acceptance_adaptive_k", "threshold", threshold, 0, 1)
    check_integer("acceptance_adaptive_k", "window", window, 1, 10**6)
    check_integer("acceptance_adaptive_k", "probe", probe, 0, 10**6)
    check_number("acceptance_adaptive_k", "hysteresis", hysteresis, 0, 1)
    check_integer("acceptance_adaptive_k", "shortest", shortest, 0, 255)
    check_integer("acceptance_adaptive_k", "longest", longest, 1, 255)
    check_scope("acceptance_adaptive_k", scope)
    if shortest > longest:
        raise PolicyError(
            f"acceptance_adaptive_k: shortest is {shortest}, longest {longest}, expected "
            "shortest <= longest"
        )
    settings = {
        "threshold": threshold, "window": window, "probe": probe, "hysteresis": hysteresis,
        "shortest": shortest, "longest": longest, "scope": scope,
    }  # fmt: skip
    name = policy_name("acceptance_adaptive_k", settings, acceptance_adaptive_k)
    params = (threshold, window, probe, hysteresis, shortest, longest)
    state0 = (0.0,) * (_STATE + 3 * longest)
    return Policy(name, _draft_more, _observe, params, state0, scope=scope)


POLICIES = (
    PolicyKind(
        acceptance_adaptive_k, "outcomes", "vLLM, a branch", "acceptance at each depth",
        "the depths before the first below a threshold", "0.4, window 256, a probe in 64 rounds",
        "as proposed, unmerged; the threshold is the user's",
        examples=(
            "acceptance_adaptive_k:window=2,probe=3",
            "acceptance_adaptive_k:0.6,4,0,0.2,1,scope=sequence",
        ),
        space={
            "threshold": SHARE, "window": Option((8, 16, 32, 64, 256)),
            "probe": Option((0, 16, 64)), "hysteresis": Real(0, 0.2), "shortest": Option((0, 1)),
            "scope": SCOPE,
        },
    ),
)  # fmt: skip

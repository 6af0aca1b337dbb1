"""A bandit over stopping rules (TapOut)."""

import math

from simspec.numerics.compile import cached_njit
from simspec.policy.arguments import check_number, check_scope, policy_name
from simspec.policy.policy import Array, Go, Policy
from simspec.policy.threshold import averaged
from simspec.policy_kind import SCOPE, SHARE, PolicyKind, Real

_RULES, _STATE = 3, 4
# params: exploration, blend, confidence, SVIP's h and threshold, AdaEDL's g.
# state: rule, rounds with a draft, AdaEDL's lambda and its average; then per rule: pulls and the
# sum of its rewards. Rules: 0 confidence, 1 SVIP, 2 AdaEDL.


@cached_njit
def chosen_rule(params: Array, state: Array) -> int:
    """Index of the rule of the largest bound, each once first; ties go to the first."""
    choice, best = 0, -1.0
    for i in range(_RULES):
        pulls = state[_STATE + 2 * i]
        if pulls == 0.0:
            return i
        bound = state[_STATE + 2 * i + 1] / pulls
        bound += math.sqrt(params[0] * math.log(state[1]) / pulls)
        if bound > best + 1e-12:
            choice, best = i, bound
    return choice


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        state[0] = chosen_rule(params, state)
        return True, True
    confidence, entropy = features[slot - 1, 0], features[slot - 1, 1]
    if state[0] == 0.0:
        go = confidence >= params[2]
    elif state[0] == 1.0:
        go = math.sqrt(params[3] * entropy) <= params[4]
    else:
        go = 1.0 - math.sqrt(params[5] * entropy) >= state[2]
    return go, True


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
    if state[0] == 2.0:
        state[3] = averaged(state[3], accepted / drafted, 0.5)
        wanted = state[2]
        if state[3] < 0.9:
            wanted += 0.01
        elif drafted < len(features):
            wanted -= 0.01
        state[2] = averaged(state[2], wanted, 0.1)
    at = _STATE + 2 * int(state[0])
    state[1] += 1.0
    state[at] += 1.0
    state[at + 1] += params[1] * accepted / len(features) + (1.0 - params[1]) * accepted / drafted


def tapout(
    confidence: float = 0.8, exploration: float = 2.0, blend: float = 0.5, scope: str = "sequence"
) -> Policy:
    """TapOut: before each round, UCB1 picks the rule that decides when this draft stops.

    | rule       | stops after a token with                                       |
    | ---------- | -------------------------------------------------------------- |
    | confidence | max q < confidence                                             |
    | SVIP       | sqrt(0.15 H) > 0.3, H the entropy of q in nats                 |
    | AdaEDL     | 1 - sqrt(0.2 H) < lambda, lambda as `adaedl` adapts it, from 0.8 |

    Reward of a round: blend accepted / K + (1 - blend) accepted / drafted, K the longest draft. A
    rule's bound is mean + sqrt(exploration ln t / pulls). A round without a draft is not counted.
    lambda learns from the rounds of its rule. Reads 'confidence' and 'entropy'. PolicyError for
    values outside their ranges.

    Source: Sridhar et al., arXiv 2511.02017, of which only the abstract and summaries were
    available: UCB1, a choice per draft and a reward that blends accepted length and rate are
    theirs; these three rules, the blend of 0.5 and the thresholds are unverified.
    """
    check_number("tapout", "confidence", confidence, 0, 1)
    check_number("tapout", "exploration", exploration, 0, 1000)
    check_number("tapout", "blend", blend, 0, 1)
    check_scope("tapout", scope)
    settings = {
        "confidence": confidence, "exploration": exploration, "blend": blend, "scope": scope,
    }  # fmt: skip
    name = policy_name("tapout", settings, tapout)
    params = (exploration, blend, confidence, 0.15, 0.3, 0.2)
    state0 = (0.0, 0.0, 0.8, 0.0, *(0.0,) * (2 * _RULES))
    return Policy(
        name, _draft_more, _observe, params, state0, reads=("confidence", "entropy"), scope=scope
    )


POLICIES = (
    PolicyKind(
        tapout, "features", "TapOut", "max q, entropy, reward of each rule",
        "UCB1 picks which of three rules stops this draft", "exploration 2, blend 0.5",
        "unverified but for the abstract",
        examples=("tapout", "tapout:0.5,exploration=0.5,scope=stream"),
        space={
            "confidence": SHARE, "exploration": Real(0.001, 8, log=True), "blend": SHARE,
            "scope": SCOPE,
        },
    ),
)  # fmt: skip

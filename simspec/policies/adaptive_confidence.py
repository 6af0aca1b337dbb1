"""A confidence threshold fitted to accepted and rejected tokens (transformers, DISCO)."""

from simspec.numerics.compile import cached_njit
from simspec.policy.arguments import (
    changed_settings,
    check_integer,
    check_number,
    check_option,
    check_scope,
    threshold_name,
)  # fmt: skip
from simspec.policy.policy import Array, Go, Policy
from simspec.policy_kind import ROUNDS, SCOPE, SHARE, PolicyKind, Real

_GRID, _STATE = 256, 4
SIGNALS = ("confidence", "probability")
_ACCEPTED, _REJECTED = _STATE + _GRID, _STATE + 2 * _GRID
# params: weight of a false negative, samples before the first fit.
# state: threshold, different confidences, accepted and rejected tokens; then 256 confidences,
# ascending, and how many tokens of each were accepted and rejected. A recording knows 256 values.


@cached_njit
def count(state: Array, confidence: float, accepted: bool) -> None:
    """Adds one verified token to the counts of its confidence."""
    n, low, high = int(state[1]), 0, int(state[1])
    while low < high:
        middle = (low + high) // 2
        if state[_STATE + middle] < confidence:
            low = middle + 1
        else:
            high = middle
    if low == n or state[_STATE + low] != confidence:
        if n == _GRID:
            return
        for i in range(n, low, -1):
            for base in (_STATE, _ACCEPTED, _REJECTED):
                state[base + i] = state[base + i - 1]
        state[_STATE + low], state[_ACCEPTED + low], state[_REJECTED + low] = confidence, 0.0, 0.0
        state[1] = n + 1.0
    base = _ACCEPTED if accepted else _REJECTED
    state[base + low] += 1.0
    state[2 if accepted else 3] += 1.0


@cached_njit
def best_threshold(params: Array, state: Array) -> float:
    """The confidence of least FPR + weight FNR in floats; equal ones go to the largest."""
    positives, negatives = state[2], state[3]
    true, false, threshold, best = 0.0, 0.0, state[0], -1.0
    for i in range(int(state[1]) - 1, -1, -1):
        true += state[_ACCEPTED + i]
        false += state[_REJECTED + i]
        # In scikit-learn's floats, which decide equal losses.
        loss = false / negatives + params[0] * (1.0 - true / positives)
        if best < 0.0 or loss < best:
            threshold, best = state[_STATE + i], loss
    return threshold


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        return True, True
    return features[slot - 1, 0] >= state[0], True


def _observe(
    params: Array,
    state: Array,
    computed: int,
    drafted: int,
    accepted: int,
    features: Array,
    cost: float,
) -> None:
    for j in range(min(accepted + 1, drafted)):
        count(state, features[j, 0], j < accepted)
    if state[2] > 0.0 and state[3] > 0.0 and state[2] + state[3] > params[1]:
        state[0] = best_threshold(params, state)


def adaptive_confidence(
    threshold: float = 0.4,
    weight: float = 3.0,
    samples: int = 5,
    scope: str = "sequence",
    K: int | None = None,
    signal: str = "confidence",
) -> Policy:
    """Transformers' adaptive assistant: stop after a token whose confidence is below a fitted
    threshold.

    After each round, once more than `samples` tokens were verified and both kinds occurred:

    threshold = argmin over confidences t seen of FPR(t) + weight FNR(t)

    FPR(t): share of rejected tokens with confidence >= t; FNR(t): share of accepted tokens below
    t. Verified are the accepted tokens and the first rejected one. The history of a sequence is
    never shortened; it is kept exactly, since recordings hold 256 confidences. Equal losses, in
    scikit-learn's floats, go to the largest t. Reads 'confidence', max q: the drafted token's where
    drafts are greedy. As released it is q of the drafted token, the signal 'probability', which
    differs where drafts are drawn.
    PolicyError for values outside their ranges.

    As released in transformers 5.17 to 5.23 with scikit-learn, K 20; the history starts anew with
    each call. Without scikit-learn it is `confidence:0.4`. In 4.48.0 a fitted threshold reached
    only later calls, so that within a call it was `confidence` too. In 4.57.1 that depended on the
    assistant's generation config: values at the default of 0.4 did follow the fit.

    Source: huggingface/transformers, generation/candidate_generator.py; Mamou et al., arXiv
    2405.04304.
    """
    check_number("adaptive_confidence", "threshold", threshold, 0, 1)
    check_number("adaptive_confidence", "weight", weight, 0, 1000)
    check_integer("adaptive_confidence", "samples", samples, 0, 10**6)
    check_scope("adaptive_confidence", scope)
    check_option("adaptive_confidence", "signal", signal, SIGNALS)
    settings = {"weight": weight, "samples": samples, "scope": scope, "K": K, "signal": signal}
    changed = changed_settings(settings, adaptive_confidence)
    name = threshold_name("adaptive_confidence", threshold, changed)
    state0 = (threshold, *(0.0,) * (_STATE - 1 + 3 * _GRID))
    return Policy(name, _draft_more, _observe, (weight, samples), state0, K, (signal,), scope)


POLICIES = (
    PolicyKind(
        adaptive_confidence, "features", "transformers, DISCO",
        "max q, and which tokens were accepted", "stop below the threshold of least FPR + 3 FNR",
        "0.4 before more than 5 samples",
        "as released in 5.17 to 5.23 with scikit-learn; `signal=probability` where drafts are "
        "drawn",
        examples=(
            "adaptive_confidence:0.6,samples=1",
            "adaptive_confidence:weight=0.5,samples=0,scope=stream",
        ),
        space={
            "threshold": SHARE, "weight": Real(0.1, 10, log=True), "samples": ROUNDS,
            "scope": SCOPE,
        },
    ),
)  # fmt: skip

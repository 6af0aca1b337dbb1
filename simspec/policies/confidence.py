"""Stop at a low confidence of the drafter."""

from simspec.policy.arguments import (
    changed_settings,
    check_flag,
    check_number,
    check_option,
    threshold_name,
)  # fmt: skip
from simspec.policy.policy import Array, Go, Policy, observe_nothing
from simspec.policy_kind import FLAG, SHARE, PolicyKind

SIGNALS = ("confidence", "probability")


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        return True, True
    return features[slot - 1, 0] >= params[0], params[1] > 0.0


def confidence(
    threshold: float, inclusive: bool = True, K: int | None = None, signal: str = "confidence"
) -> Policy:
    """Stop after a token whose confidence, the drafter's top probability, is below the threshold.

    inclusive submits that token too (the assistant threshold of HuggingFace transformers, S2D's
    last exit). Otherwise it is dropped: computed but wasted, as in llama.cpp. Dropping depends on q
    alone and stays lossless. PolicyError for a threshold outside [0, 1] or an unknown signal.

    llama.cpp's p_min compares max q over the sum of the ten largest q, which recordings do not
    hold: p_min up to 0.1 never stops there, and at one number it drafts at least as long as here.

    | signal      | reads                                                                      |
    | ----------- | -------------------------------------------------------------------------- |
    | confidence  | max q                                                                      |
    | probability | q of the drafted token: as released in transformers, where drafts are drawn |

    Both are the same where drafts are greedy. `probability` is refused for drawn drafts where it
    drops the token, see `Policy`. Source: ConfidenceCriteria, transformers,
    generation/stopping_criteria.py at 5.23.
    """
    check_number("confidence", "threshold", threshold, 0, 1)
    check_flag("confidence", "inclusive", inclusive)
    check_option("confidence", "signal", signal, SIGNALS)
    changed = changed_settings({"inclusive": inclusive, "K": K, "signal": signal}, confidence)
    name = threshold_name("confidence", threshold, changed)
    params = (threshold, inclusive)
    anticipates = signal == "probability" and not inclusive
    return Policy(
        name, _draft_more, observe_nothing, params, K=K, reads=(signal,), anticipates=anticipates
    )


POLICIES = (
    PolicyKind(
        confidence, "features", "transformers, llama.cpp", "max q", "stop below T",
        "T is required; 0.4 in transformers",
        "as released where drafts are greedy; `signal=probability` reads q of the drafted token, "
        "as released where they are drawn; `inclusive=false` drops the token, as llama.cpp does, "
        "whose `p_min` divides max q by the ten largest q, which recordings do not hold",
        examples=("confidence:0.7", "confidence:0.7,inclusive=false"),
        space={"threshold": SHARE, "inclusive": FLAG},
        required={"threshold": 0.4},
    ),
)  # fmt: skip

"""Stop at a high predicted probability of a rejection so far (SpecDec++)."""

from simspec.policy.arguments import (
    changed_settings,
    check_flag,
    check_integer,
    check_number,
    threshold_name,
)  # fmt: skip
from simspec.policy.policy import Array, Go, Policy, PolicyError, observe_nothing
from simspec.policy_kind import FLAG, SHARE, Option, PolicyKind


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    # Read before any branch: otherwise numba counts references on each side of it, half of the
    # time.
    threshold, keep, shortest, before, probability = (
        params[0],
        params[1],
        params[2],
        state[0],
        features[max(slot - 1, 0), 0],
    )
    product = 1.0 if slot == 0 else before * min(max(probability, 0.0), 1.0)
    state[0] = product
    return slot < max(shortest, 1.0) or 1.0 - product <= threshold, keep > 0.0 or slot == 0


def product(
    threshold: float = 0.3,
    predictor: str = "confidence",
    shortest: int = 2,
    inclusive: bool = True,
    K: int | None = None,
) -> Policy:
    """SpecDec++: stop once 1 - P_1 P_2 ... P_i, the predicted probability of a rejection, is above
    the threshold.

    P_i is a recorded probability of acceptance: the drafter's confidence in place of the paper's
    trained head, or another feature by name, such as 'theta'. Published: threshold 0.3 (0.7
    elsewhere), 2 to 20 tokens. At least `shortest` tokens are drafted. The running product is kept
    in the state, and set to 1 at slot 0. PolicyError for a threshold outside [0, 1] or shortest or
    K outside 1..255.
    """
    check_number("product", "threshold", threshold, 0, 1)
    check_integer("product", "shortest", shortest, 1, 255)
    check_flag("product", "inclusive", inclusive)
    if K is not None:
        check_integer("product", "K", K, 1, 255)
    if not (isinstance(predictor, str) and predictor.isidentifier()) or predictor == "entropy":
        raise PolicyError(
            f"product: predictor is {predictor!r}, "
            "expected the name of a recorded probability such as theta"
        )
    settings = {"predictor": predictor, "shortest": shortest, "inclusive": inclusive, "K": K}
    name = threshold_name("product", threshold, changed_settings(settings, product))
    params = (threshold, inclusive, shortest)
    return Policy(name, _draft_more, observe_nothing, params, (1.0,), K, (predictor,))


POLICIES = (
    PolicyKind(
        product, "features", "SpecDec++; tail pruning", "product of max q, or of a predictor",
        "stop once 1 - product exceeds a threshold", "0.3, at least 2 tokens",
        "corrected: judged at once; see below. Tail pruning is `product:0.9,shortest=1`, with 0.05 "
        "to 0.2 of the product published",
        examples=(
            "product:0.3", "product:0.6,theta,shortest=1,inclusive=false",
            "product:0.8,inclusive=false",
        ),
        space={"threshold": SHARE, "shortest": Option((1, 2, 3, 4)), "inclusive": FLAG},
    ),
)  # fmt: skip

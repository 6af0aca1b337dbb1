"""Stop at a token that looks bad: confidence, entropy (SVIP), SpecDec++ and AdaEDL."""

import math
from functools import partial
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from simspec.cost.model import CostModel
from simspec.policy.policy import (
    Array,
    Draft,
    Go,
    Length,
    Policy,
    PolicyError,
    Scope,
    Share,
    checked,
    observe_nothing,
    policy_name,
    threshold_name,
)  # fmt: skip
from simspec.policy.predictor import (
    READS,
    fit_predictor,
    head_arguments,
    predicted,
    split_by_task,
)  # fmt: skip
from simspec.policy_kind import FLAG, SCOPE, SHARE, DeferredPolicy, Option, PolicyKind, Real
from simspec.trace.trace import Trace


def _confident(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        return True, True
    return features[slot - 1, 0] >= params[0], params[1] > 0.0


@checked
def confidence(
    threshold: Share,
    inclusive: bool = True,
    K: Draft | None = None,
    signal: Literal["confidence", "probability"] = "confidence",
) -> Policy:
    """Stop after a token whose confidence, the drafter's top probability, is below the threshold.

    inclusive submits that token too (the assistant threshold of HuggingFace transformers, S2D's
    last exit). Otherwise it is dropped: computed but wasted, as in llama.cpp. Dropping depends on q
    alone and stays lossless.

    llama.cpp's p_min compares max q over the sum of the ten largest q, which recordings do not
    hold: p_min up to 0.1 never stops there, and at one number it drafts at least as long as here.

    `signal=probability` reads q of the drafted token in place of max q, as released in transformers
    where drafts are drawn; it is refused for drawn drafts where it drops the token, see `Policy`.
    Source: ConfidenceCriteria, transformers,
    generation/stopping_criteria.py at 5.23.
    """
    settings = {"inclusive": inclusive, "K": K, "signal": signal}
    name = threshold_name("confidence", threshold, settings, confidence)
    return Policy(
        name, _confident, observe_nothing, (threshold, inclusive), K=K, reads=(signal,),
        anticipates=signal == "probability" and not inclusive,
    )  # fmt: skip


def _certain(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        return True, True
    return features[slot - 1, 0] <= params[0], params[1] > 0.0


@checked
def entropy(
    threshold: Annotated[float, Meta(ge=0, le=100)] = 0.6,
    inclusive: bool = True,
    K: Draft | None = None,
) -> Policy:
    """SVIP: stop after a token at which q's entropy H, in nats, is above the threshold.

    Published as sqrt(0.15 H) > 0.3, that is H > 0.6, with a cap of 40; the token is submitted
    (inclusive).
    """
    name = threshold_name("entropy", threshold, {"inclusive": inclusive, "K": K}, entropy)
    params = (threshold, inclusive)
    return Policy(name, _certain, observe_nothing, params, K=K, reads=("entropy",))


def _likely(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
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


@checked
def product(
    threshold: Share = 0.3,
    predictor: str = "confidence",
    shortest: Length = 2,
    inclusive: bool = True,
    K: Length | None = None,
) -> Policy:
    """SpecDec++: stop once 1 - P_1 P_2 ... P_i, the predicted probability of a rejection, is above
    the threshold.

    P_i is a recorded probability of acceptance: the drafter's confidence in place of the paper's
    trained head, or another feature by name, such as 'theta'. Published: threshold 0.3 (0.7
    elsewhere), 2 to 20 tokens. At least `shortest` tokens are drafted. The running product is kept
    in the state, and set to 1 at slot 0.
    """
    if not predictor.isidentifier() or predictor == "entropy":
        raise PolicyError(
            f"product: predictor is {predictor!r}, "
            "expected the name of a recorded probability such as theta"
        )
    settings = {"predictor": predictor, "shortest": shortest, "inclusive": inclusive, "K": K}
    name = threshold_name("product", threshold, settings, product)
    params = (threshold, inclusive, shortest)
    return Policy(name, _likely, observe_nothing, params, (1.0,), K, (predictor,))


Variant = Literal["paper", "released"]
FITTED = "fitted"

# params: threshold, 1 as released, shortest, longest, then those of `head_arguments`.
# state: the product of the judged tokens' probabilities.


def _head_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    judged = slot - int(params[1])
    if judged <= 0:
        state[0] = 1.0
    else:
        state[0] *= min(max(predicted(params, features, judged - 1), 0.0), 1.0)
    if slot < params[2]:
        return True, True
    return slot < params[3] and 1.0 - state[0] <= params[0], True


@checked
def specdec_pp(
    threshold: Share = 0.3,
    variant: Variant = "paper",
    predictor: Any = "theta",
    shortest: Length = 2,
    longest: Length = 20,
) -> DeferredPolicy:
    """SpecDec++ (arXiv 2405.19715): stop once 1 - P_1 ... P_i > threshold, P_i of a trained head.

    Before token i + 1 is drafted `paper` judges tokens 1 .. i and `released` 1 .. i - 1: its head
    reads the state after a token, known one token later. The token that triggers the stop is
    submitted. Published: threshold 0.3 (0.7 elsewhere), 2 to 20 tokens. The published head reads a
    drafter's hidden state, which recordings do not hold: predictor is a recorded probability such
    as theta, a scalar predictor as in `cali_ts`, or `fitted`, a `ScalarPredictor` of every second
    prompt of each task of the replayed recording (ValueError where nothing can be fitted).
    """
    settings = dict(locals())
    if shortest > longest:
        raise PolicyError(f"specdec_pp: shortest is {shortest}, expected at most longest {longest}")
    label = FITTED
    reads: tuple[str, ...] = READS
    head: tuple[float, ...] | None = None
    if predictor != FITTED:
        label, reads, head = head_arguments("specdec_pp", predictor)
    name = policy_name("specdec_pp", settings | {"predictor": label}, specdec_pp)
    limits = (threshold, float(variant == "released"), float(shortest), float(longest))
    return DeferredPolicy(name, partial(_resolved, name, limits, reads, head), reads)


def _resolved(
    name: str,
    limits: tuple[float, ...],
    reads: tuple[str, ...],
    head: tuple[float, ...] | None,
    trace: Trace,
    cost: CostModel,
) -> Policy:
    if head is None:
        head = (1.0, *fit_predictor(trace, split_by_task(trace)[0]).weights)
    return Policy(name, _head_more, observe_nothing, (*limits, *head), (1.0,), reads=reads)


# state: the threshold, the average of accepted / drafted. params: g, target, step.


def _bound_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        return True, True
    return 1.0 - math.sqrt(params[0] * features[slot - 1, 0]) >= state[0], True


def _bound_observe(
    params: Array, state: Array, computed: int, drafted: int, accepted: int, features: Array,
    cost: float,
) -> None:  # fmt: skip
    if drafted == 0:
        return
    state[1] = (1.0 - 0.5) * state[1] + 0.5 * (accepted / drafted)
    wanted = state[0]
    if state[1] < params[1]:
        wanted += params[2]
    elif drafted < len(features):
        wanted -= params[2]
    state[0] = (1.0 - 0.1) * state[0] + 0.1 * wanted


@checked
def adaedl(
    threshold: Share = 0.8,
    target: Share = 0.9,
    step: Share = 0.01,
    g: Annotated[float, Meta(ge=1e-6, le=10)] = 0.2,
    scope: Scope = "sequence",
    K: Draft | None = None,
) -> Policy:
    """AdaEDL: stop after a token at which 1 - sqrt(g H), a bound on its acceptance, is below
    lambda.

    H is q's entropy in nats. After a round m = 0.5 m + 0.5 accepted / drafted, from 0; lambda' =
    lambda + step if m < target, else lambda - step, else lambda where the draft was K long; lambda
    = 0.9 lambda + 0.1 lambda', the rule of Draft & Verify (Zhang et al., arXiv 2309.08168). A round
    without a draft changes nothing. The paper is reported to use g = 0.2; its first lambda and its
    target were unavailable, so those of Draft & Verify are used, unverified.
    """
    settings = {"threshold": threshold, "target": target, "step": step, "scope": scope, "K": K}
    return Policy(
        policy_name("adaedl", settings | {"g": g}, adaedl), _bound_more, _bound_observe,
        (g, target, step), (threshold, 0.0), K, ("entropy",), scope,
    )  # fmt: skip


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
    PolicyKind(
        entropy, "features", "SVIP", "entropy of q", "stop above 0.6 nats", "0.6", "as released",
        examples=("entropy", "entropy:2,inclusive=false"),
        space={"threshold": Real(0.02, 6, log=True), "inclusive": FLAG},
    ),
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
    PolicyKind(
        specdec_pp, "features", "SpecDec++", "a trained acceptance head",
        "stop once 1 - product exceeds a threshold",
        "0.3, 2 to 20 tokens, recorded `theta`; or `predictor=fitted`",
        "`paper` (default), or `released`: judged one token later. Recordings hold no hidden "
        "states: a head is recorded, or fitted to scalars",
        examples=(
            "specdec_pp:0.5,released,theta",
            "specdec_pp:0.6,predictor=scalar/0.2/0.6/-0.3/0.1,shortest=1,longest=4",
        ),
        space={
            "threshold": SHARE, "variant": Option(get_args(Variant)),
            "shortest": Option((1, 2, 3, 4)),
        },
    ),
    PolicyKind(
        adaedl, "features", "AdaEDL", "entropy of q, acceptance",
        "stop where 1 - sqrt(0.2 H) is below a threshold that follows acceptance",
        "0.8, target 0.9, step 0.01, of Draft & Verify", "unverified",
        examples=("adaedl:0.5,step=0.3,scope=stream", "adaedl:0.4"),
        space={
            "threshold": SHARE, "target": SHARE, "step": Real(0.001, 0.3, log=True),
            "g": Real(0.02, 1, log=True), "scope": SCOPE,
        },
    ),
)  # fmt: skip

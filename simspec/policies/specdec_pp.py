"""Stop at a high probability of a rejection, by a trained acceptance head (SpecDec++)."""

import os
from functools import partial

from simspec.cost.model import CostModel
from simspec.policy.arguments import (
    check_integer,
    check_number,
    check_option,
    policy_name,
)  # fmt: skip
from simspec.policy.policy import Array, Go, Policy, PolicyError, observe_nothing
from simspec.policy.predictor import (
    READS,
    ScalarPredictor,
    fit_predictor,
    head_arguments,
    predicted,
    split_by_task,
)
from simspec.policy_kind import SHARE, DeferredPolicy, Option, PolicyKind
from simspec.trace.trace import Trace

VARIANTS = ("paper", "released")
FITTED = "fitted"

# params: threshold, 1 as released, shortest, longest, then those of `head_arguments`.
# state: the product of the judged tokens' probabilities.


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    judged = slot - int(params[1])
    if judged <= 0:
        state[0] = 1.0
    else:
        state[0] *= min(max(predicted(params, features, judged - 1), 0.0), 1.0)
    if slot < params[2]:
        return True, True
    return slot < params[3] and 1.0 - state[0] <= params[0], True


def specdec_pp(
    threshold: float = 0.3,
    variant: str = "paper",
    predictor: str | os.PathLike[str] | ScalarPredictor = "theta",
    shortest: int = 2,
    longest: int = 20,
) -> DeferredPolicy:
    """SpecDec++ (arXiv 2405.19715): stop once 1 - P_1 ... P_i > threshold, P_i of a trained head.

    | variant | tokens judged before token i + 1 is drafted |
    | --- | --- |
    | paper | 1 .. i |
    | released | 1 .. i - 1: the head reads the state after a token, known one token later |

    The token that triggers the stop is submitted. Published: threshold 0.3 (0.7 elsewhere), 2 to 20
    tokens. The published head reads the drafter's hidden state, which recordings do not hold.

    | predictor | P_i |
    | --- | --- |
    | theta, or another feature | a recorded probability, such as that of a trained head |
    | fitted | a `ScalarPredictor` of confidence, entropy and depth, see below |
    | as in `cali_ts` | a scalar predictor, its JSON file or its weights |

    `fitted` learns from every second prompt of each task of the recording that is replayed.
    `product` takes the drafter's confidence for P_i. PolicyError for a threshold outside [0, 1], an
    unknown variant, or lengths outside 1..255; when resolved, ValueError where nothing can be
    fitted.
    """
    check_number("specdec_pp", "threshold", threshold, 0, 1)
    check_option("specdec_pp", "variant", variant, VARIANTS)
    check_integer("specdec_pp", "shortest", shortest, 1, 255)
    check_integer("specdec_pp", "longest", longest, 1, 255)
    if shortest > longest:
        raise PolicyError(f"specdec_pp: shortest is {shortest}, expected at most longest {longest}")
    label = FITTED
    reads: tuple[str, ...] = READS
    head: tuple[float, ...] | None = None
    if predictor != FITTED:
        label, reads, head = head_arguments("specdec_pp", predictor)
    settings = {
        "threshold": threshold, "variant": variant, "predictor": label, "shortest": shortest,
        "longest": longest,
    }  # fmt: skip
    name = policy_name("specdec_pp", settings, specdec_pp)
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
    return Policy(name, _draft_more, observe_nothing, (*limits, *head), (1.0,), reads=reads)


POLICIES = (
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
            "threshold": SHARE, "variant": Option(VARIANTS), "shortest": Option((1, 2, 3, 4)),
        },
    ),
)  # fmt: skip

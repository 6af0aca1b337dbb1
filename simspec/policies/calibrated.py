"""Thompson sampling of the continuation from a calibrated predictor (EESD, Algorithm 3)."""

import math
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from simspec.numerics.compile import cached_njit
from simspec.policy.policy import (
    Array,
    Draft,
    Go,
    Policy,
    Scope,
    Share,
    checked,
    observe_nothing,
    policy_name,
)  # fmt: skip
from simspec.policy.predictor import head_arguments, predicted
from simspec.policy_kind import SHARE, Option, PolicyKind, Real

Reading = Literal["draft_share", "validated", "literal"]
READINGS = get_args(Reading)
Sigma = Annotated[float, Meta(ge=1e-6, le=1e6)] | None
_ROOT2, _ROOT2PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)

# Chosen (docs/papers.md) on one half of the prompts of the bundled recordings.
_RECORDED, _SCALAR = (0.25, 0.25, 0.5), (0.00781, 0.0625, 0.5)
DEFAULTS = {"recorded": _RECORDED, "scalar": _SCALAR}
"""{kind of predictor: (sigma_m, sigma_s, theta0)} of `cali_ts`."""

# params: reading, sigma_M^2, sigma_S^2, theta_0, 1 for a scalar predictor, then its bias and
# weights (confidence, entropy, depth). state: accepted tokens, trials (by reading), rounds in which
# something was verified.


@cached_njit
def clipped_mean(mean: float, sigma: float) -> float:
    """E[min(max(X, 0), 1)] of X ~ N(mean, sigma^2) = g(mean) - g(mean - 1), g(d) = d Phi(d / sigma)
    + sigma phi(d / sigma).
    """
    if sigma <= 0.0:
        return min(max(mean, 0.0), 1.0)
    total = 0.0
    for d, sign in ((mean, 1.0), (mean - 1.0, -1.0)):
        z = d / sigma
        total += sign * (
            d * 0.5 * math.erfc(-z / _ROOT2) + sigma * math.exp(-0.5 * z * z) / _ROOT2PI
        )
    return min(max(total, 0.0), 1.0)


@cached_njit
def observed(params: Array, state: Array) -> float:
    """theta-hat = (theta_0 + accepted) / (1 + trials), in [0, 1] since accepted <= trials in every
    reading.
    """
    return (params[3] + state[0]) / (1.0 + state[1])


@cached_njit
def theta_weight(n: float, variance_m: float, variance_s: float) -> float:
    """Weight of theta_M in mu after n verified rounds (Eq. 6): sigma_S^2 / (n sigma_M^2 +
    sigma_S^2); that of theta-hat is the rest.
    """
    return variance_s / (n * variance_m + variance_s)


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    # Algorithm 3 decides after each drafted token, so there is always a first one.
    if slot == 0:
        return True, True
    weight = theta_weight(state[2], params[1], params[2])
    mean = weight * predicted(params, features, slot - 1)
    mean += (1.0 - weight) * observed(params, state)
    return u < clipped_mean(mean, math.sqrt(params[1] * weight)), True


def _draft_more_by_model(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    return slot == 0 or u < predicted(params, features, slot - 1), True


def _draft_more_by_sample(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    return slot == 0 or u < clipped_mean(
        observed(params, state), math.sqrt(params[2] / max(state[2], 1.0))
    ), True


def _observe(
    params: Array, state: Array, computed: int, drafted: int, accepted: int, features: Array,
    cost: float,
) -> None:  # fmt: skip
    if drafted > 0:
        state[2] += 1.0
    trials = accepted
    if params[0] == 0.0:
        trials = accepted + 1
    elif params[0] == 1.0:
        trials = min(accepted + 1, drafted)
    state[0] += accepted
    state[1] += trials


SIDES = {"both": _draft_more, "model": _draft_more_by_model, "sampling": _draft_more_by_sample}


@checked
def cali_ts(
    reading: Reading = "validated",
    predictor: Any = "theta",
    sigma_m: Sigma = None,
    sigma_s: Sigma = None,
    theta0: Share | None = None,
    scope: Scope = "sequence",
    K: Draft | None = None,
    side: Literal["both", "model", "sampling"] = "both",
) -> Policy:
    """Cali-TS (EESD Alg. 3, Eqs. 5-10): continue with probability theta ~ N(mu, sigma^2), clipped
    to [0, 1].

    mu = (sigma_S^2 theta_M + n sigma_M^2 theta-hat) / (n sigma_M^2 + sigma_S^2) (Eq. 6)
    1 / sigma^2 = 1 / sigma_M^2 + n / sigma_S^2 (Eq. 7)

    n counts the verified rounds, theta_M is the predictor's value for the last drafted token (Eq.
    5). theta is drawn anew at every call, so one uniform against E[clip(theta, 0, 1)] decides, see
    `clipped_mean`. The paper does not say what to do with a theta outside [0, 1]. Rounds without a
    draft do not count in n.

    theta-hat (Eqs. 8 and 10) is a running mean with one pseudo-observation theta_0. The paper
    leaves t open:

    | reading     | tokens counted by t in a round                                               |
    | ----------- | ---------------------------------------------------------------------------- |
    | draft_share | output, a + 1: a running r_d, at most 1/2 at k = 1, so drafts stay short     |
    | validated   | validated, min(a + 1, k): the running acceptance                             |
    | literal     | as printed, a: theta-hat = (theta_0 + sum a) / (1 + sum a), which tends to 1 |

    The appendix takes sigma_S = sigma_chi / sqrt(k) for a constant k; drafts vary in length.
    theta_M weighs sigma_S^2 / (n sigma_M^2 + sigma_S^2), theta-hat the rest (`theta_weight`).

    | predictor | sigma_M | sigma_S | theta_0 | weight of theta_M at n = 1, 10, 100 |
    | --- | --- | --- | --- | --- |
    | recorded | 0.25 | 0.25 | 0.5 | 0.500, 0.091, 0.010 |
    | scalar | 0.00781 | 0.0625 | 0.5 | 0.985, 0.865, 0.390 |

    sigma_M, sigma_S and theta_0 are unpublished. These defaults were chosen on one half of
    the prompts of recordings of small models, at c = 0.05, 0.10 and 0.15 (docs/papers.md). Choose
    anew where costs differ: `draft_share` wins
    where a draft step costs a third of a target step.

    side is of EESD Table 4: `model`, without the sampling side, continues with probability theta_M;
    `sampling`, without the predictor, with theta ~ N(theta-hat, sigma_S^2 / n), clipped: the limit
    sigma_M -> infinity, where n = 1 is used before the first round, around theta_0.

    predictor: the name of a recorded probability ('theta'), a `ScalarPredictor`, or its weights as
    'scalar/bias/confidence/entropy/depth'; a scalar predictor reads 'confidence' and 'entropy'.
    """
    settings = dict(locals())
    label, reads, weights = head_arguments("cali_ts", predictor)
    defaults = _SCALAR if weights[0] else _RECORDED
    m, s, prior = (
        default if value is None else value
        for value, default in zip((sigma_m, sigma_s, theta0), defaults)
    )
    params = (READINGS.index(reading), m * m, s * s, prior, *weights)
    name = policy_name("cali_ts", settings | {"predictor": label}, cali_ts)
    return Policy(
        name, SIDES[side], observe_nothing if side == "model" else _observe, params, (0.0,) * 3, K,
        () if side == "sampling" else reads, scope, random=True,
    )  # fmt: skip


POLICIES = (
    PolicyKind(
        cali_ts, "features", "EESD, Algorithm 3", "acceptance predictor and rate",
        "continue with the calibrated probability", "constants of our choice (docs/papers.md)",
        "paper; sigmas unpublished",
        examples=(
            "cali_ts:draft_share",
            "cali_ts:validated,predictor=scalar/0.2/0.6/-0.3/0.1,sigma_m=0.2,sigma_s=0.7,"
            "theta0=0.8,scope=stream",
            "cali_ts:literal,predictor=confidence,sigma_m=2",
            "cali_ts:draft_share,predictor=scalar/0.1/0.7/-0.2/0.1,sigma_m=0.5,sigma_s=0.2",
            "cali_ts:side=model,predictor=scalar/0.2/0.6/-0.3/0.1",
            "cali_ts:side=model,predictor=confidence", "cali_ts:side=sampling",
            "cali_ts:draft_share,side=sampling,sigma_s=0.4",
        ),
        space={
            "reading": Option(READINGS), "sigma_m": Real(0.01, 10, log=True),
            "sigma_s": Real(0.01, 10, log=True), "theta0": SHARE,
        },
    ),
)  # fmt: skip

"""Thompson sampling of the continuation, a learned prediction calibrated by what was sampled (EESD, Algorithm 3)."""

import math
import os

from simspec.compile_cache import cached_njit
from simspec.policy import Policy, PolicyError
from simspec.scalar_predictor import READS, ScalarPredictor

READINGS = ("draft_share", "validated", "literal")
_ROOT2, _ROOT2PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)

# Chosen by tests/bench/readings.py on one half of the bundled recordings' prompts, over three prices (measured, c = 0.05, c = 0.1), mean
# speedups: with the recorded theta 1.298 (draft_share 1.280, literal 1.225), with a scalar predictor 1.3125 (1.3108, 1.2964).
_READING, _RECORDED, _SCALAR = "validated", (0.8, 0.06, 0.0), (0.05, 0.25, 0.25)


# params: which reading, sigma_M^2, sigma_S^2, theta_0, 1 for a Scalar, then its bias and weights (confidence, entropy, depth).
# state: accepted tokens, trials (what a trial is depends on the reading), rounds in which something was verified.


@cached_njit
def clipped_mean(mean, sigma):
    """E[min(max(X, 0), 1)] of X ~ N(mean, sigma^2) = g(mean) - g(mean - 1), g(d) = d Phi(d / sigma) + sigma phi(d / sigma)."""
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
def predicted(params, features, i):
    """theta_M of slot i: the recorded feature, or the Scalar's value from (confidence, entropy, depth)."""
    if params[4] == 0.0:
        return features[i, 0]
    confidence = features[i, 0]
    # The range of the log-odds grid; a confidence of 0 or 1 on another grid stays finite.
    odds = (
        -8.0
        if confidence <= 0.0
        else 12.0
        if confidence >= 1.0
        else math.log(confidence) - math.log1p(-confidence)
    )
    z = (
        params[5]
        + params[6] * min(max(odds, -8.0), 12.0)
        + params[7] * features[i, 1]
        + params[8] * min(i, 10)
    )
    return 1.0 / (1.0 + math.exp(-z)) if z >= 0.0 else math.exp(z) / (1.0 + math.exp(z))


@cached_njit
def observed(params, state):
    """theta-hat = (theta_0 + accepted) / (1 + trials), in [0, 1] since accepted <= trials in every reading."""
    return (params[3] + state[0]) / (1.0 + state[1])


def _draft_more(params, state, slot, features, u):
    # Algorithm 3 asks after each drafted token, so there is always a first one.
    if slot == 0:
        return True, True
    n = state[2]
    total = n * params[1] + params[2]
    mean = (
        params[2] * predicted(params, features, slot - 1) + n * params[1] * observed(params, state)
    ) / total
    return u < clipped_mean(mean, math.sqrt(params[1] * params[2] / total)), True


def _draft_more_by_model(params, state, slot, features, u):
    return slot == 0 or u < predicted(params, features, slot - 1), True


def _draft_more_by_sample(params, state, slot, features, u):
    return slot == 0 or u < clipped_mean(
        observed(params, state), math.sqrt(params[2] / max(state[2], 1.0))
    ), True


def _observe(params, state, computed, drafted, accepted, features, cost):
    if drafted > 0:
        state[2] += 1.0
    trials = accepted
    if params[0] == 0.0:
        trials = accepted + 1
    elif params[0] == 1.0:
        trials = min(accepted + 1, drafted)
    state[0] += accepted
    state[1] += trials


def _forget(params, state, computed, drafted, accepted, features, cost):
    pass


def cali_ts(
    reading: str = _READING,
    predictor: str | os.PathLike | ScalarPredictor = "theta",
    sigma_m: float | None = None,
    sigma_s: float | None = None,
    theta0: float | None = None,
    scope: str = "sequence",
    K: int | None = None,
) -> Policy:
    """Cali-TS (EESD Alg. 3, Eqs. 5-10): go on with probability theta ~ N(mu, sigma^2), theta_M corrected by theta-hat.

    mu = (sigma_S^2 theta_M + n sigma_M^2 theta-hat) / (n sigma_M^2 + sigma_S^2) (Eq. 6), 1 / sigma^2 = 1 / sigma_M^2 +
    n / sigma_S^2 (Eq. 7), n rounds verified so far, theta_M the predictor's value for the token just drafted (Eq. 5).
    theta is fresh at every question, so one uniform against E[clip(theta, 0, 1)] decides, `clipped_mean`. The paper gives
    no way from a theta outside [0, 1] to a coin: it is clipped here. It never has rounds without a draft: those do not count in n.

    theta-hat (Eqs. 8 and 10; printed with the previous index t - |Q_v| and its weight t - |Q_v| + 1, so a running mean with one
    pseudo-observation theta_0) in three readings of t, none of which the paper settles:
    `draft_share`: t counts output tokens, a + 1 a round: a running r_d, which cannot exceed 1/2 at k = 1 and so holds drafts short;
    `validated`: t counts validated tokens, min(a + 1, k) a round: the running acceptance;
    `literal`: t adds |Q_v| = a as printed: theta-hat = (theta_0 + sum a) / (1 + sum a), which tends to 1 whatever happens.

    Its appendix takes sigma_S = sigma_chi / sqrt(k) for a constant k, which a draft of varying length is not; and lists mu_0,
    sigma_0, which nothing uses. sigma_M, sigma_S, theta_0 are published nowhere. What stands in for None won on recordings of small
    models, on prompts other than those reported (tests/bench/readings.py): 0.8, 0.06, 0 for a recorded predictor, so that what was
    sampled soon outweighs it, and 0.05, 0.25, 0.25 for a Scalar, better calibrated there. Where a draft step costs a third of a target
    step `draft_share` wins instead, for it drafts least: choose anew where costs differ.

    predictor: the name of a recorded probability ('theta'), a `ScalarPredictor`, its JSON file, or its weights as
    'scalar/bias/confidence/entropy/depth'; a Scalar reads 'confidence' and 'entropy'. PolicyError for an unknown
    reading, a sigma not finite and > 0, theta0 outside [0, 1], or a file that is no predictor.
    """
    label, reads, weights = _predictor("cali_ts", predictor)
    usual = _SCALAR if weights[0] else _RECORDED
    constants = [
        chosen if value is None else value
        for value, chosen in zip((sigma_m, sigma_s, theta0), usual)
    ]
    params = (*_posterior("cali_ts", reading, *constants), *weights)
    given = {
        "reading": reading,
        "predictor": label,
        "sigma_m": sigma_m,
        "sigma_s": sigma_s,
        "theta0": theta0,
        "scope": scope,
        "K": K,
    }
    name = _name("cali_ts", given, cali_ts)
    return Policy(
        name, _draft_more, _observe, params, (0.0,) * 3, K=K, reads=reads, scope=scope, random=True
    )


def model_only(
    predictor: str | os.PathLike | ScalarPredictor = "theta", K: int | None = None
) -> Policy:
    """Cali-TS without its sampling side (EESD Table 4): go on with probability theta_M; predictor as in `cali_ts`."""
    label, reads, weights = _predictor("model_only", predictor)
    name = _name("model_only", {"predictor": label, "K": K}, model_only)
    return Policy(
        name, _draft_more_by_model, _forget, (0.0,) * 4 + weights, K=K, reads=reads, random=True
    )


def sampling_only(
    reading: str = _READING,
    sigma_s: float = 0.25,
    theta0: float = 0.25,
    scope: str = "sequence",
    K: int | None = None,
) -> Policy:
    """Cali-TS without its predictor (EESD Table 4): theta ~ N(theta-hat, sigma_S^2 / n), the limit sigma_M -> infinity.

    The limit has no mean before the first round: n = 1 stands in there, around theta_0. Arguments and errors as in `cali_ts`.
    """
    params = _posterior("sampling_only", reading, 1.0, sigma_s, theta0)
    given = {"reading": reading, "sigma_s": sigma_s, "theta0": theta0, "scope": scope, "K": K}
    name = _name("sampling_only", given, sampling_only)
    return Policy(
        name, _draft_more_by_sample, _observe, params, (0.0,) * 3, K=K, scope=scope, random=True
    )


def _posterior(policy, reading, sigma_m, sigma_s, theta0):
    if reading not in READINGS:
        raise PolicyError(
            f"{policy}: reading is {reading!r}, expected one of {', '.join(READINGS)}"
        )
    for name, value in (("sigma_m", sigma_m), ("sigma_s", sigma_s)):
        if isinstance(value, (str, bool)) or not 1e-6 <= value <= 1e6:
            raise PolicyError(f"{policy}: {name} is {value!r}, expected a number in [1e-6, 1e6]")
    if isinstance(theta0, (str, bool)) or not 0 <= theta0 <= 1:
        raise PolicyError(f"{policy}: theta0 is {theta0!r}, expected a number in [0, 1]")
    return READINGS.index(reading), sigma_m * sigma_m, sigma_s * sigma_s, theta0


def _predictor(policy, given):
    """(text that reads back as the predictor, features it reads, the five parameters behind the posterior's)."""
    made, label = given, given
    try:
        if isinstance(given, os.PathLike) or (isinstance(given, str) and given.endswith(".json")):
            made, label = ScalarPredictor.from_json(given), os.fspath(given)
        elif isinstance(given, str) and given.startswith("scalar/"):
            made = ScalarPredictor(*map(float, given.split("/")[1:]))
        elif not isinstance(given, ScalarPredictor) and not (
            isinstance(given, str) and given.isidentifier()
        ):
            raise ValueError(
                "expected a feature's name, a Scalar, its .json file, or scalar/bias/confidence/entropy/depth"
            )
    except (TypeError, ValueError) as error:
        raise PolicyError(f"{policy}: predictor is {given!r}: {error}") from None
    if isinstance(given, ScalarPredictor):
        label = "/".join(("scalar", *map(repr, made.weights)))
    if any(mark in label for mark in ",=\n"):
        raise PolicyError(
            f"{policy}: predictor is {label!r}, expected a path without comma, equals sign or line break"
        )
    return (
        (label, READS, (1.0, *made.weights))
        if isinstance(made, ScalarPredictor)
        else (label, (label,), (0.0,) * 5)
    )


def _name(name, given, factory):
    usual = dict(zip(given, factory.__defaults__))
    told = [f"{key}={value}" for key, value in given.items() if value != usual[key]]
    return f"{name}:{','.join(told)}" if told else name

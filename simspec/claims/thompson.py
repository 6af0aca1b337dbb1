"""Claims about Thompson sampling of the draft length (EESD)."""

from itertools import chain

import numpy as np

from simspec.claims.claim import Inputs
from simspec.claims.evidence import Array, Evidence, excess, observe
from simspec.claims.price import MEASURED, Price
from simspec.claims.recorded import Recorded, by_prompt
from simspec.policies.calibrated import cali_ts, model_only, sampling_only
from simspec.policies.fixed import fixed
from simspec.policies.thompson import beta_ts
from simspec.policy import Policy
from simspec.reports.cross_fit import halves
from simspec.scalar_predictor import ScalarPredictor, fit_predictor

LONGEST = 10
"""EESD's K (its Table 4 and section 4.1)."""
MARGIN = 0.01
"""'At least as good': not slower by more than this share."""


def against_best_fixed(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 1: how much slower the best fixed length is than Beta-TS."""
    found = []
    for recorded in inputs.recordings.of("early_exit"):
        ours = _beta(recorded, inputs, price)
        theirs, k = recorded.best_fixed(price, LONGEST)
        rounds = recorded.rounds(beta_ts(K=_longest(recorded)), inputs.seed)
        found.append(
            observe(
                "time of the best fixed K over Beta-TS's, less 1",
                recorded.source,
                price.name,
                np.stack((theirs, ours), -1),
                excess,
                (-MARGIN, np.inf),
                {"K": k, "drafted by Beta-TS": float(rounds.drafted.mean())},
                inputs.seed,
            )
        )
    return found


def calibrated_against_beta(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 2: how much slower Beta-TS is than Cali-TS."""
    part = "time of Beta-TS over Cali-TS's, less 1"
    return [
        _paired(part, recorded, inputs, price, (_beta(recorded, inputs, price), calibrated))
        for recorded in inputs.recordings.of("early_exit")
        for calibrated in [_calibrated(recorded, inputs, price, "hybrid")]
    ]


def sampling_against_model(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 3: how much slower Cali-TS is without sampling-prediction than without the model's."""
    part = "time without sampling-prediction over that without model-prediction, less 1"
    found = []
    for recorded in inputs.recordings.of("early_exit"):
        sampled = recorded.seconds(
            sampling_only(K=_longest(recorded)), price, inputs.seed, inputs.draws
        )
        modelled = _calibrated(recorded, inputs, price, "model")
        found.append(_paired(part, recorded, inputs, price, (modelled, sampled)))
    return found


def other_drafters(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 5: how much slower a fixed length of 10 is than Beta-TS, on other drafters."""
    found = []
    deep = (inputs.recordings.deep(drafter, LONGEST) for drafter in ("model", "self_skip"))
    for recorded in chain.from_iterable(deep):
        K = _longest(recorded)
        theirs = recorded.seconds(fixed(K), price)
        part = f"time of fixed:{K} over Beta-TS's, less 1"
        seconds = theirs, _beta(recorded, inputs, price)
        found.append(_paired(part, recorded, inputs, price, seconds))
    return found


def time_by_phase(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 20: Beta-TS over Cali-TS in drafting and verification, sampling's share, and in all."""
    found = []
    for recorded in inputs.recordings.of("early_exit"):
        beta = _beta(recorded, inputs, price)
        whole = _calibrated(recorded, inputs, price, "hybrid")
        passes = _calibrated(recorded, inputs, price, "hybrid", charged=False)
        draft = "drafting and verification: time of Beta-TS over Cali-TS's, less 1"
        found.append(_paired(draft, recorded, inputs, price, (beta, passes)))
        sampling = "sampling: seconds that Cali-TS takes longer to read features, over its time"
        found.append(
            observe(
                sampling,
                recorded.source,
                price.name,
                np.stack((whole - passes, whole), -1),
                lambda t: t[..., 0] / t[..., 1],
                seed=inputs.seed,
            )
        )
        total = "total: time of Beta-TS over Cali-TS's, less 1"
        found.append(_paired(total, recorded, inputs, price, (beta, whole)))
    return found


def _paired(
    part: str, recorded: Recorded, inputs: Inputs, price: Price, seconds: tuple[Array, Array]
) -> Evidence:
    columns = np.stack(seconds, -1)
    return observe(part, recorded.source, price.name, columns, excess, seed=inputs.seed)


def _longest(recorded: Recorded) -> int:
    return min(LONGEST, recorded.trace.K)


def _beta(recorded: Recorded, inputs: Inputs, price: Price) -> Array:
    policy = beta_ts(K=_longest(recorded))
    return recorded.seconds(policy, price, inputs.seed, inputs.draws)


def _calibrated(
    recorded: Recorded, inputs: Inputs, price: Price, kind: str, charged: bool = True
) -> Array:
    """float64[S]: seconds of Cali-TS, or of its model-prediction alone.

    It reads the recorded theta; without one a scalar predictor fitted to the other half of the
    prompts. charged False: features are free.
    """
    K = _longest(recorded)

    def policy(predictor: str | ScalarPredictor) -> Policy:
        if kind == "model":
            return model_only(predictor, K)
        return cali_ts(predictor=predictor, K=K)

    def seconds(made: Policy) -> Array:
        if charged:
            return recorded.seconds(made, price, inputs.seed, inputs.draws)
        cost = price.of(recorded.cost)
        draws = [recorded.rounds(made, inputs.seed + i) for i in range(inputs.draws)]
        return np.mean([by_prompt(cost.seconds(rounds), rounds) for rounds in draws], axis=0)

    if "theta" in dict(recorded.trace.meta.features):
        return seconds(policy("theta"))
    times = np.empty(recorded.trace.sequences)
    for fit, rest in halves(recorded.trace):
        times[rest] = seconds(policy(fit_predictor(recorded.trace, fit)))[rest]
    return times


BREAKDOWN = (MEASURED,)
"""Sampling is priced by measurement alone."""

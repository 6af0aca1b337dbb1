"""Values of policies that other tests leave open: defaults, priors, and tokens at a threshold."""

import numpy as np
import pytest

from simspec import CostModel, synthetic
from simspec.policies import cali_ts, confidence, cost_ts, entropy, product
from simspec.policies.thompson import planned

SHOWN = 0.5


def goes_on(policy, value, slot=1):
    """Whether the policy drafts on behind a token that shows `value`."""
    draft_more, (params, state) = policy.compiled()[0], policy.start()
    shown = np.full((4, 1), value)
    return bool(draft_more(params, state, slot, shown, np.nan)[0])


@pytest.mark.parametrize(
    "policy, beyond",
    [(confidence(SHOWN), 0.25), (entropy(SHOWN), 0.75), (product(SHOWN, shortest=1), 0.25)],
)
def test_a_token_at_the_threshold_is_drafted_behind(policy, beyond):
    assert goes_on(policy, SHOWN)
    assert not goes_on(policy, beyond)


@pytest.mark.parametrize(
    "predictor, defaults",
    [("theta", (0.25, 0.25, 0.5)), ("scalar/0.1/0.7/-0.2/0.1", (0.00781, 0.0625, 0.5))],
)
def test_calibrated_sampling_has_the_defaults_of_its_predictor(predictor, defaults):
    """sigma_M, sigma_S and theta_0 as `cali_ts` states them."""
    sigma_m, sigma_s, theta0 = defaults
    assert cali_ts(predictor=predictor).params[1:4] == (sigma_m**2, sigma_s**2, theta0)


@pytest.mark.parametrize("alpha0, beta0, length", [(9.0, 1.0, 4), (1.0, 9.0, 0)])
def test_prior_successes_lengthen_drafts(alpha0, beta0, length):
    """With a mean acceptance of 0.9 four tokens pay at a ratio of 0.2, with 0.1 none."""
    trace, cost = synthetic.iid(0.5, 1, 10, 4), CostModel.from_ratio(0.2, 4)
    policy = cost_ts(alpha0=alpha0, beta0=beta0, greedy=True)(trace, cost)
    params, state = policy.start()
    assert planned(params, state, 0.5) == length

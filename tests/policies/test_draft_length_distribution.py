"""Mean draft lengths of the Thompson policies against the enumeration of their posteriors."""

import math

import naive
import numpy as np
import pytest
from scipy import stats

from simspec import replay, synthetic
from simspec.policies import beta_ts, cali_ts
from simspec.policies.calibrated import READINGS as CALIBRATED
from simspec.policies.thompson import READINGS
from simspec.trace.quantization import IDENTITY

K, ROUNDS_DEEP, SEQUENCES = 4, 4, 6000


def _beta(reading):
    def learn(state, k, a):
        hits, misses = naive.beta_counts(reading, k, a)
        return state[0] + hits, state[1] + misses

    return (lambda state: state[0] / (state[0] + state[1])), learn, (1, 1)


def _cali(reading, theta_m, sigma_m, sigma_s, theta0):
    steps = {
        "draft_share": lambda k, a: a + 1,
        "validated": lambda k, a: min(a + 1, k),
        "literal": lambda k, a: a,
    }
    seen = {}

    def go(state):
        if state not in seen:
            accepted, trials, n = state
            prior, data = 1 / sigma_m**2, n / sigma_s**2
            mean = (prior * theta_m + data * (theta0 + accepted) / (1 + trials)) / (prior + data)
            seen[state] = naive.clipped_normal(mean, (prior + data) ** -0.5, 401)
        return seen[state]

    return (
        go,
        lambda state, k, a: (state[0] + a, state[1] + steps[reading](k, a), state[2] + 1),
        (0, 0, 0),
    )


def _replayed(policy, acceptance, theta_m):
    """Mean draft length of the first rounds over many sequences, none of which reaches its end."""
    rows = ROUNDS_DEEP * (K + 1) + K + 1
    trace = synthetic.iid(acceptance, SEQUENCES, rows, K, seed=11, confidence=True)
    code = int(np.argmin(abs(IDENTITY - theta_m)))
    meta = type(trace.meta)(**{**vars(trace.meta), "features": (("theta", "identity"),)})
    trace = type(trace)(
        **{**vars(trace), "meta": meta, "feature": np.full_like(trace.feature, code)}
    )
    rounds = replay(trace, policy, seed=5)
    first = rounds.offset[:-1, None] + np.arange(ROUNDS_DEEP)
    assert (first < rounds.offset[1:, None]).all()
    return rounds.drafted[first].mean(axis=0)


SETTINGS = (0.4, 0.8, 0.7)  # sigma_M, sigma_S, theta_0
CASES = {f"beta {r}": (beta_ts(r), _beta(r)) for r in READINGS} | {
    f"cali {r}": (cali_ts(r, "theta", *SETTINGS), _cali(r, 0.6, *SETTINGS)) for r in CALIBRATED
}


# Twice two-sided 1e-6 over 7 policies x 2 acceptances x 4 rounds: one fixed seed, so a pass stays a
# pass.
Z = stats.norm.isf(1e-6 / (2 * 7 * 2 * ROUNDS_DEEP))


@pytest.mark.parametrize("acceptance", [0.5, 0.9])
@pytest.mark.parametrize("label", CASES)
def test_mean_draft_length_equals_enumeration(label, acceptance):
    """Every state of the posterior enumerated for four rounds; the replay's means within z,
    false alarm 1e-6 over all of them.
    """
    policy, (go, learn, start) = CASES[label]
    moments = naive.draft_length_moments(ROUNDS_DEEP, K, acceptance, go, learn, start)
    means = _replayed(policy, acceptance, 0.6)
    for mean, (expected, variance) in zip(means, moments):
        assert abs(mean - expected) <= Z * math.sqrt(variance / SEQUENCES) + 1e-6, (means, moments)


def test_control_another_reading_is_detected():
    """The same replay against the moments of another reading, and of another acceptance, is far
    outside.
    """
    means = _replayed(beta_ts("acceptance"), 0.9, 0.6)
    for reading, acceptance in (("printed", 0.9), ("acceptance", 0.8)):
        moments = naive.draft_length_moments(ROUNDS_DEEP, K, acceptance, *_beta(reading))
        assert abs(means[-1] - moments[-1][0]) > Z * math.sqrt(moments[-1][1] / SEQUENCES)


def test_printed_update_drifts_to_short_drafts():
    """The digest's figures, enumerated from the uniform prior: at acceptance 0.8 the mean draft is
    2.0 in the first round, 1.2 from the thirtieth on and still falling; where all is accepted it is
    2.0 in every round but for the cap (a policy that learns nothing).
    """
    means = [
        mean for mean, _ in naive.draft_length_moments(30, 8, 0.8, *_beta("printed"), ignore=1e-8)
    ]
    assert means[0] == pytest.approx(2.0, abs=0.01)
    assert all(b < a for a, b in zip(means, means[1:]))
    assert means[-1] == pytest.approx(1.21, abs=0.01)
    certain = [mean for mean, _ in naive.draft_length_moments(12, 40, 1.0, *_beta("printed"))]
    assert all(mean == pytest.approx(2.0, abs=0.004) for mean in certain)
    held = naive.draft_length_moments(8, 8, 0.8, *_beta("acceptance"))
    assert held[-1][0] > 2.5

"""The posteriors of Thompson sampling, and the draft lengths that follow from them."""

import math
from dataclasses import replace
from fractions import Fraction

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config
from rule_twins import state_after, threshold
from scipy import integrate, stats

from simspec import replay, synthetic
from simspec.policies import beta_ts, cali_ts
from simspec.policies.calibrated import READINGS as CALIBRATED
from simspec.policies.calibrated import clipped_mean
from simspec.policies.thompson import READINGS
from simspec.trace.quantization import IDENTITY

ROUND = st.tuples(st.integers(0, 16), st.integers(0, 16)).map(lambda pair: (pair[0], min(pair)))
ROUNDS = st.lists(ROUND, max_size=25)
UNIT = st.floats(0, 1)
SIGMA = st.floats(0.01, 20)


@pytest.mark.parametrize("reading", READINGS)
@settings(deadline=None, max_examples=40)
@given(rounds=ROUNDS, alpha=st.integers(1, 8), beta=st.integers(1, 8))
def test_beta_posterior_is_conjugate_in_the_summed_counts(reading, rounds, alpha, beta):
    counts = [naive.beta_counts(reading, k, a) for k, a in rounds]
    hits, misses = sum(r for r, _ in counts), sum(f for _, f in counts)
    state = state_after(beta_ts(reading, alpha, beta), (alpha, beta), rounds)
    assert state.tolist() == [alpha + hits, beta + misses]
    # Conjugacy itself: prior density times Bernoulli likelihood, normalised, is this Beta's
    # density.
    x = np.array([0.2, 0.5, 0.8])
    weight = stats.beta.logpdf(x, alpha, beta) + hits * np.log(x) + misses * np.log1p(-x)
    density = stats.beta.logpdf(x, *state)
    np.testing.assert_allclose(weight - weight[0], density - density[0], atol=1e-9)


@pytest.mark.parametrize(
    "policy",
    [*(beta_ts(r) for r in READINGS), *(cali_ts(r) for r in CALIBRATED)],
    ids=lambda policy: policy.name,
)
@settings(deadline=None, max_examples=30)
@given(rounds=ROUNDS, data=st.data())
def test_posterior_ignores_order_and_breaks(policy, rounds, data):
    whole = state_after(policy, policy.state0, rounds)
    assert (
        state_after(policy, policy.state0, data.draw(st.permutations(rounds))).tolist()
        == whole.tolist()
    )
    cut = data.draw(st.integers(0, len(rounds)))
    assert (
        state_after(policy, state_after(policy, policy.state0, rounds[:cut]), rounds[cut:]).tolist()
        == whole.tolist()
    )


@settings(deadline=None, max_examples=30)
@given(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3))
def test_continuation_is_bernoulli_of_the_beta_mean(a, b):
    """E of Bernoulli(theta) over theta ~ Beta(a, b), as the u at which the answer turns."""
    assert threshold(beta_ts(), (a, b)) == pytest.approx(a / (a + b), abs=1e-15)


@settings(deadline=None, max_examples=100)
@given(st.floats(-0.5, 1.5), SIGMA)
def test_clipped_mean_equals_its_integral(mean, sigma):
    x = stats.norm(mean, sigma)
    inside, _ = integrate.quad(
        lambda t: t * x.pdf(t), 0, 1, points=[min(max(mean, 0), 1)], epsabs=1e-12, limit=200
    )
    assert clipped_mean(mean, sigma) == pytest.approx(inside + x.sf(1), abs=1e-9)
    assert clipped_mean(mean, sigma) == pytest.approx(
        naive.clipped_normal(mean, sigma, 2001), abs=1e-6
    )
    assert clipped_mean(mean, 0.0) == min(max(mean, 0), 1)


@pytest.mark.parametrize("reading", CALIBRATED)
@settings(deadline=None, max_examples=40)
@given(rounds=ROUNDS, theta0=st.integers(0, 8), theta_m=UNIT, sigma_m=SIGMA, sigma_s=SIGMA)
def test_cali_posterior_weighs_by_precision(reading, rounds, theta0, theta_m, sigma_m, sigma_s):
    """mu and sigma^2 as the textbook has them: precisions add and weigh the means; theta-hat by
    Eq. 8's recursion in fractions.
    """
    rounds = [(k, a) for k, a in rounds if k]
    policy = cali_ts(reading, sigma_m=sigma_m, sigma_s=sigma_s, theta0=theta0 / 8)
    hat = float(naive.theta_hat(reading, Fraction(theta0, 8), rounds))
    prior, seen = 1 / sigma_m**2, len(rounds) / sigma_s**2
    mean, sigma = (prior * theta_m + seen * hat) / (prior + seen), (prior + seen) ** -0.5
    state = state_after(policy, policy.state0, rounds)
    assert threshold(policy, state, (theta_m,)) == pytest.approx(
        clipped_mean(mean, sigma), abs=1e-9
    )
    bare = cali_ts(reading, sigma_s=sigma_s, theta0=theta0 / 8, side="sampling")
    expected = clipped_mean(hat, sigma_s / math.sqrt(max(len(rounds), 1)))
    assert threshold(bare, state_after(bare, bare.state0, rounds)) == pytest.approx(
        expected, abs=1e-9
    )
    alone = threshold(cali_ts(side="model"), (0, 0, 0), (theta_m,))
    assert alone == pytest.approx(theta_m, abs=1e-15)


@pytest.mark.parametrize("reading", CALIBRATED)
@settings(deadline=None, max_examples=40)
@given(rounds=ROUNDS, theta0=UNIT)
def test_theta_hat_stays_a_probability(reading, rounds, theta0):
    policy = cali_ts(reading, side="sampling", sigma_s=1e-6, theta0=theta0)
    state = state_after(policy, policy.state0, rounds)
    assert 0 <= (theta0 + state[0]) / (1 + state[1]) <= 1
    assert 0 <= state[0] <= state[1]


def test_limits_of_the_three_readings():
    """One token of ten accepted: Eq. 8 as printed ends near 1, the acceptance at 1/10, the share
    of the output at 1/11.
    """
    rounds = [(1, 1)] + [(1, 0)] * 9
    ends = {reading: float(naive.theta_hat(reading, 0.5, rounds * 300)) for reading in CALIBRATED}
    for reading, end in ends.items():
        policy = cali_ts(reading, side="sampling", sigma_s=1e-6, theta0=0.5)
        assert threshold(policy, state_after(policy, policy.state0, rounds * 300)) == pytest.approx(
            end, abs=1e-6
        )
    assert ends["literal"] > 0.998
    assert ends["validated"] == pytest.approx(0.1, abs=1e-3)
    assert ends["draft_share"] == pytest.approx(1 / 11, abs=1e-3)
    always = float(naive.theta_hat("draft_share", 0.5, [(1, 1)] * 2000))
    # at k = 1 half the output is the target's own, whatever is accepted
    assert always == pytest.approx(0.5, abs=1e-3)


def test_rounds_without_drafts_add_no_acceptance():
    for reading in ("validated", "literal"):
        policy = cali_ts(reading)
        assert state_after(policy, policy.state0, [(0, 0)] * 5).tolist() == [0, 0, 0]
    policy = cali_ts("draft_share")
    # output tokens all the same
    assert state_after(policy, policy.state0, [(0, 0)] * 5).tolist() == [0, 5, 0]


K, ROUNDS_DEEP = 4, 4
SEQUENCES = 2000 if config.DISABLE_JIT else 6000  # which take ten times as long interpreted


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
    meta = replace(trace.meta, features=(("theta", "identity"),))
    trace = replace(trace, meta=meta, feature=np.full_like(trace.feature, code))
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

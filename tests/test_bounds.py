"""The bound of `simspec check`: moments against enumeration, error rate against the exact."""

from collections import defaultdict

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simspec.validation.checks import RoundDistribution, interval, moments


@st.composite
def distributions(draw, rows=4):
    """(RoundDistribution, arguments of naive.histories) of a short sequence with 1 or 2 states."""
    K, Z, alike = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = draw(st.integers(1, rows))
    accept = rng.choice([0.0, 0.2, 0.5, 0.9, 1.0], (1 if alike else rows, K, Z))
    move, start, go = (
        rng.dirichlet(np.ones(Z), Z),
        rng.dirichlet(np.ones(Z)),
        rng.choice([0.0, 0.4, 1.0], K),
    )
    plain = (
        rows,
        go.tolist(),
        lambda row, j, z: accept[0 if alike else row, j, z],
        move.tolist(),
        start.tolist(),
    )
    return RoundDistribution(accept, move, start, go, rows), plain


def exact(plain, reward):
    """{sum of rewards: probability} of one sequence, by enumeration."""
    probability = defaultdict(float)
    for draws, rounds in naive.histories(*plain):
        probability[round(sum(reward[r] for r in rounds), 9)] += draws
    return probability


@settings(deadline=None, max_examples=60)
@given(distributions(), st.integers(0, 2**32))
def test_moments_equal_enumeration(pair, seed):
    distribution, plain = pair
    reward = np.random.default_rng(seed).integers(-3, 4, (distribution.K + 1,) * 3).astype(float)
    truth = exact(plain, reward)
    assert sum(truth.values()) == pytest.approx(1, abs=1e-9)
    mean = sum(x * p for x, p in truth.items())
    variance = sum((x - mean) ** 2 * p for x, p in truth.items())
    assert moments(distribution, reward) == pytest.approx((mean, variance), abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(distributions(), st.integers(1, 6), st.sampled_from([0.3, 0.05, 1e-3]))
def test_interval_error_rate_is_at_most_the_risk(pair, sequences, risk):
    """The distribution of a sum by convolution: outside lies a probability of risk at most."""
    distribution, plain = pair
    reward = np.ones((distribution.K + 1,) * 3)
    one = exact(plain, reward)
    many = {0.0: 1.0}
    for _ in range(sequences):
        more = defaultdict(float)
        for x, p in many.items():
            for y, q in one.items():
                more[x + y] += p * q
        many = more
    mean, low, high = interval(distribution, reward, sequences, risk)
    assert mean == pytest.approx(sum(x * p for x, p in many.items()), abs=1e-9)
    assert sum(p for x, p in many.items() if not low - 1e-9 <= x <= high + 1e-9) <= risk


def test_interval_is_not_too_wide():
    """At risk 1e-6 it is at most a quarter wider than the normal 4.89 standard errors."""
    distribution = RoundDistribution(np.full((1, 4, 1), 0.7), np.eye(1), np.ones(1), np.ones(4), 60)
    reward = np.ones((5, 5, 5))
    error = np.sqrt(500 * moments(distribution, reward)[1])
    mean, low, high = interval(distribution, reward, 500, 1e-6)
    assert 4.89 < (high - mean) / error < 6.1
    assert 4.89 < (mean - low) / error < 6.1


def test_constant_sum_has_an_interval_of_no_width():
    distribution = RoundDistribution(np.ones((1, 3, 1)), np.eye(1), np.ones(1), np.ones(3), 8)
    assert interval(distribution, np.ones((4, 4, 4)), 10, 0.01) == (20.0, 20.0, 20.0)


def test_each_side_has_half_of_the_risk():
    """A sum of many rounds is nearly normal: each end lies where half of the risk is beyond.

    Chernoff's bound is at most a little wider than the normal quantile, and never narrower.
    """
    distribution = RoundDistribution(np.full((1, 4, 1), 0.7), np.eye(1), np.ones(1), np.ones(4), 60)
    reward = np.ones((5, 5, 5))
    error = np.sqrt(500 * moments(distribution, reward)[1])
    for risk in (0.1, 1e-3):
        mean, low, high = interval(distribution, reward, 500, risk)
        reach = np.sqrt(2 * np.log(2 / risk))
        assert (high - mean) / error == pytest.approx(reach, rel=0.03)
        assert (mean - low) / error == pytest.approx(reach, rel=0.03)

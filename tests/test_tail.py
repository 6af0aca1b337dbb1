"""The bound that `simspec check` stands on: its recursions against enumeration, its error rate against the exact law."""

from collections import defaultdict

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simspec.validation.bounds import Law, interval, moments


@st.composite
def laws(draw, rows=4):
    """(Law, the arguments of naive.histories) of a short text with one or two hidden states, rows alike or not."""
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
    return Law(accept, move, start, go, rows), plain


def exact(plain, reward):
    """{sum of rewards: probability} of one text, by enumeration."""
    law = defaultdict(float)
    for draws, rounds in naive.histories(*plain):
        law[round(sum(reward[r] for r in rounds), 9)] += draws
    return law


@settings(deadline=None, max_examples=60)
@given(laws(), st.integers(0, 2**32))
def test_mean_and_variance_are_those_of_the_enumeration(law, seed):
    law, plain = law
    reward = np.random.default_rng(seed).integers(-3, 4, (law.K + 1,) * 3).astype(float)
    truth = exact(plain, reward)
    assert sum(truth.values()) == pytest.approx(1, abs=1e-9)
    mean = sum(x * p for x, p in truth.items())
    variance = sum((x - mean) ** 2 * p for x, p in truth.items())
    assert moments(law, reward) == pytest.approx((mean, variance), abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(laws(), st.integers(1, 6), st.sampled_from([0.3, 0.05, 1e-3]))
def test_the_interval_errs_no_more_often_than_it_says(law, texts, risk):
    """The law of a sum over a few texts by convolution: what lies outside has probability risk at most."""
    law, plain = law
    reward = np.ones((law.K + 1,) * 3)
    one = exact(plain, reward)
    many = {0.0: 1.0}
    for _ in range(texts):
        more = defaultdict(float)
        for x, p in many.items():
            for y, q in one.items():
                more[x + y] += p * q
        many = more
    mean, low, high = interval(law, reward, texts, risk)
    assert mean == pytest.approx(sum(x * p for x, p in many.items()), abs=1e-9)
    assert sum(p for x, p in many.items() if not low - 1e-9 <= x <= high + 1e-9) <= risk


def test_the_interval_is_not_idle():
    """At risk 1e-6 it is at most a quarter wider than the normal law's 4.89 standard errors."""
    law = Law(np.full((1, 4, 1), 0.7), np.eye(1), np.ones(1), np.ones(4), 60)
    reward = np.ones((5, 5, 5))
    error = np.sqrt(500 * moments(law, reward)[1])
    mean, low, high = interval(law, reward, 500, 1e-6)
    assert 4.89 < (high - mean) / error < 6.1
    assert 4.89 < (mean - low) / error < 6.1


def test_what_cannot_vary_has_no_width():
    law = Law(np.ones((1, 3, 1)), np.eye(1), np.ones(1), np.ones(3), 8)
    assert interval(law, np.ones((4, 4, 4)), 10, 0.01) == (20.0, 20.0, 20.0)

"""Beta draws at addresses: their distribution, their independence, and the slow twin."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from naive import philox as slow_philox
from scipy import special, stats

from simspec.numerics.rng import accepts, beta_draw

SHAPES = ((1, 1), (2, 2), (40, 3), (1, 200), (9000, 400), (0.3, 5), (0.05, 3), (0.5, 0.4))
DRAWS, CELLS, ERROR = 10_000, 32, 1e-7
"""Draws of each test, equal cells of their distribution function, and the rate of false alarms."""
SHAPE = st.floats(-3, 6).map(lambda x: 10.0**x)
WORD = st.integers(0, 2**32 - 1)


def _units(seed, count=DRAWS):
    return (np.random.default_rng(seed).integers(0, 2**32, count) + 0.5) / 2**32


def _drawn(a, b, seed=1, index=0):
    return np.array([beta_draw(u, index, a, b) for u in _units(seed)])


def _follows(x, a, b):
    """Whether draws are of Beta(a, b): chi-square on equal cells of I_x(a, b), at ERROR."""
    cells = np.minimum((special.betainc(a, b, x) * CELLS).astype(int), CELLS - 1)
    return stats.chisquare(np.bincount(cells, minlength=CELLS)).pvalue > ERROR


@pytest.mark.parametrize("a, b", SHAPES)
def test_draws_follow_their_distribution(a, b):
    """At 1e-7 a shape; a posterior of a tenth more accepted tokens would be noticed."""
    x = _drawn(a, b)
    assert _follows(x, a, b)
    assert not _follows(x, 1.2 * a, b)


def test_control_variates_that_nothing_refuses_are_noticed():
    """The same ratio of cubes of normals without the rejections: 60,000 of Beta(1, 1) fail."""
    normal = np.random.default_rng(3).standard_normal((2, 60_000))
    x, y = np.maximum(1 + normal / math.sqrt(6), 1e-9) ** 3
    assert not _follows(x / (x + y), 1, 1)


def test_squeeze_takes_only_what_the_exact_test_takes():
    for shape in (1.0, 1.5, 4.0, 100.0, 1e6):
        d = shape - 1 / 3
        for x in np.linspace(-6.8, 6.8, 1361):
            v = (1 + x / math.sqrt(9 * d)) ** 3
            if v > 0:
                bound = math.exp(min(0.5 * x * x + d * (1 - v + math.log(v)), 0.0))
                assert 1 - 0.0331 * x**4 <= bound + 1e-9
                assert accepts(x, v, d, bound * 0.999)
                assert bound > 0.999 or not accepts(x, v, d, bound * 1.001 + 1e-9)


def test_control_a_wider_squeeze_would_be_noticed():
    x, d = 1.2, 2 / 3
    v = (1 + x / math.sqrt(9 * d)) ** 3
    assert 1 - 0.0031 * x**4 > math.exp(0.5 * x * x + d * (1 - v + math.log(v))) + 1e-9


def test_draws_of_indices_are_independent():
    """Each pair of 4 indices on 4 x 4 cells, chi-square at 1e-7; control: an index with itself."""
    cells = [(special.betainc(3, 2, _drawn(3, 2, 5, i)) * 4).astype(int) for i in range(4)]
    for i, first in enumerate(cells):
        for second in cells[:i]:
            assert stats.chisquare(np.bincount(first * 4 + second, minlength=16)).pvalue > ERROR
    twice = np.bincount(cells[0] * 4 + cells[0], minlength=16)
    assert stats.chisquare(twice).pvalue < ERROR


def test_neighboring_posteriors_draw_alike():
    """Common random numbers: one more observation moves the draws of one address together."""
    pair = np.corrcoef(_drawn(6, 4, 7), _drawn(7, 4, 7))[0, 1]
    assert pair > 0.95
    assert abs(np.corrcoef(_drawn(6, 4, 7), _drawn(6, 4, 8))[0, 1]) < 0.1


@settings(deadline=None, max_examples=200)
@given(WORD, st.integers(0, 300), SHAPE, SHAPE)
@example(0, 0, 1e-3, 1e-3)
@example(2**32 - 1, 254, 1e-3, 1e6)
def test_draw_is_that_of_the_slow_twin(word, index, a, b):
    x = beta_draw((word + 0.5) / 2**32, index, a, b)
    assert 0 <= x <= 1
    assert x == pytest.approx(_slow_draw(word, index, a, b), rel=1e-9, abs=1e-300)


def _slow_draw(word, index, a, b):
    """X / (X + Y) of two Gamma variates by their definition, on Python integers."""
    key = (0x62657461, 0x64726177)
    trial, variates = 0, ()
    while len(variates) < 2:
        u = [(w + 0.5) / 2**32 for w in slow_philox((word, index, trial, 0), key)]
        normals = [math.sqrt(-2 * math.log(u[0])) * f(2 * math.pi * u[1]) for f in (np.cos, np.sin)]
        variates = [
            log_variate
            for normal, uniform, shape in zip(normals, u[2:], (a, b))
            for log_variate in _log_gamma(normal, uniform, shape + (shape < 1))
        ]
        trial += 1
    u = [(w + 0.5) / 2**32 for w in slow_philox((word, index, 0, 1), key)]
    logs = [
        log + (math.log(uniform) / shape if shape < 1 else 0)
        for log, uniform, shape in zip(variates, u, (a, b))
    ]
    return math.exp(logs[0] - max(logs)) / sum(math.exp(log - max(logs)) for log in logs)


def _log_gamma(normal, uniform, shape):
    """[ln of a Gamma variate] where the trial takes it, else []."""
    d = shape - 1 / 3
    root = 1 + normal / math.sqrt(9 * d)
    if root <= 0 or math.log(uniform) >= normal**2 / 2 + d - d * root**3 + 3 * d * math.log(root):
        return []
    return [math.log(d) + 3 * math.log(root)]

"""Swap tests and BCa intervals of few prompts, against all their resamples."""

from itertools import product

import numpy as np
import pytest
from scipy import stats as scipy_stats

from simspec.numerics import stats


def total(t):
    return t[..., 0]


def test_smallest_p_value_counts_the_observation_itself():
    """Twenty prompts that all differ one way: no swap of 999 is as large, and p is 1 / 1000."""
    a, b = np.ones((20, 1)), np.arange(2.0, 22.0)[:, None]
    assert stats.swap_test(a, b, total, resamples=999) == 1 / 1000


def test_equal_swaps_count_against_the_observation():
    """Eight prompts that differ by one each: 2 of 256 swaps are as large, both ways."""
    a, b = np.zeros((8, 1)), np.ones((8, 1))
    sums = [abs(sum(signs)) for signs in product((1, -1), repeat=8)]
    exact = np.mean([s >= 8 for s in sums])
    assert exact == 2 / 256
    p = stats.swap_test(a, b, total, resamples=9999)
    assert abs(p - exact) < 5 * np.sqrt(exact / 9999)
    assert stats.swap_test(a, a, total, resamples=99) == 1.0


def test_two_sides_have_one_p_value():
    """Swaps of either sign count: halving them would be seen at 3 of 8 prompts the other way."""
    difference = np.array([1.0, 1, 1, 1, 1, -1, -1, -1])
    exact = np.mean([abs(np.dot(s, difference)) >= 2 for s in product((1, -1), repeat=8)])
    a = np.zeros((8, 1))
    p = stats.swap_test(a, difference[:, None], total, resamples=9999)
    assert abs(p - exact) < 0.02
    assert stats.swap_test(difference[:, None], a, total, resamples=9999) == pytest.approx(p)


def test_bca_is_efrons_formula():
    """z0 from the share of resamples below the figure, a from the jackknife, both not small."""
    heavy, one = np.random.default_rng(4).pareto(2.0, 12) + 1, np.ones(12)
    drawn = np.random.default_rng(3).multinomial(12, [1 / 12] * 12, size=4000).astype(float)
    figures, figure = drawn @ heavy / 12, heavy.mean()
    z0 = scipy_stats.norm.ppf((figures < figure).mean())
    without = (heavy.sum() - heavy) / 11
    spread = without.mean() - without
    a = (spread**3).sum() / (6 * (spread**2).sum() ** 1.5)
    assert min(abs(z0), a) > 0.05
    z = np.sqrt(12 / 11) * scipy_stats.t.ppf([0.025, 0.975], 11)
    ends = scipy_stats.norm.cdf(z0 + (z0 + z) / (1 - a * (z0 + z)))
    interval = stats.ratio(heavy, one, seed=3)
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(figures, ends)))

"""Intervals over prompts: definitions, coverage at stated error rates, controls that must fail."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from simspec.numerics import stats

TRIALS = 400


def prompts(rng, count, effect=0.0):
    """Accepted and rounds of each prompt: lengths vary, and a prompt's own rate varies about 1.5
    + effect.
    """
    rounds = rng.integers(10, 60, count).astype(float)
    rate = (1.5 + effect) * rng.gamma(8.0, 1 / 8.0, count)
    return rng.poisson(rate * rounds).astype(float), rounds


def covered(make, truth, interval):
    return sum(
        truth in interval(*make(np.random.default_rng(seed)), seed) for seed in range(TRIALS)
    )


@pytest.mark.parametrize("method", ("bca", "percentile"))
def test_coverage_of_a_ratio(method, record_property):
    """95% intervals, 50 prompts. If the coverage is 92% or more, at most 345 of 400 hold with
    probability 1e-4 (binomial).
    """
    hits = covered(
        lambda rng: prompts(rng, 50),
        1.5,
        lambda a, r, seed: stats.ratio(a, r, resamples=800, seed=seed % 7, method=method),
    )
    record_property(
        "measured",
        f"{method} intervals of a ratio over 50 prompts: {hits / TRIALS:.1%} of {TRIALS} hold it "
        "(95% meant)",
    )
    assert scipy_stats.binom.cdf(345, TRIALS, 0.92) < 1e-4
    assert hits > 345


def paired(*columns, **options):
    return stats.bootstrap(stats.stacked(*columns), stats.difference, **options)


def test_coverage_of_a_paired_difference(record_property):
    """Two policies on the same prompts, one better by 0.1 everywhere; error rate as above."""

    def make(rng):
        accepted, rounds = prompts(rng, 50)
        return accepted, rounds, accepted + rng.poisson(0.1 * rounds), rounds

    hits = covered(make, -0.1, lambda *four: paired(*four[:4], resamples=800, seed=four[4] % 7))
    record_property(
        "measured",
        f"bca intervals of a paired difference over 50 prompts: {hits / TRIALS:.1%} of {TRIALS} "
        "hold the truth",
    )
    assert hits > 345


def test_control_rounds_as_units_undercover():
    """The control: the same texts cut into their rounds, as if those were independent, miss the
    truth far too often.

    If they covered 92%, fewer than 45 of 60 would hold it with probability 4e-5 at most.
    """

    def make(rng):
        accepted, rounds = prompts(rng, 12)
        rounds = rounds.astype(int)
        cut = [rng.multinomial(int(a), np.full(n, 1 / n)) for a, n in zip(accepted, rounds)]
        return np.concatenate(cut).astype(float), np.ones(rounds.sum())

    trials = range(60)
    hits = sum(
        1.5 in stats.ratio(*make(np.random.default_rng(seed)), resamples=100, method="percentile")
        for seed in trials
    )
    assert hits < 45


def test_difference_is_that_of_the_two_ratios():
    columns = np.tile([[1.0, 2.0, 1.0, 4.0], [2.0, 2.0, 2.0, 8.0]], (5, 1)).T
    assert paired(*columns).value == pytest.approx(3 / 4 - 3 / 12)


def test_pairing_narrows_the_interval():
    accepted, rounds = prompts(np.random.default_rng(1), 60)
    other = accepted + np.random.default_rng(2).poisson(0.1 * rounds)
    same = paired(accepted, rounds, other, rounds)
    shuffled = np.random.default_rng(3).permutation(60)
    apart = paired(accepted, rounds, other[shuffled], rounds[shuffled])
    assert same.value == pytest.approx(apart.value)
    assert same.high - same.low < 0.5 * (apart.high - apart.low)


@settings(max_examples=25)
@given(st.integers(8, 20), st.integers(0, 2**32))
def test_percentiles_equal_a_plain_loop(count, seed):
    columns = np.random.default_rng(seed).gamma(2.0, 1.0, (count, 2))
    weights = np.random.default_rng(5).multinomial(count, np.full(count, 1 / count), size=150)
    figures = []
    for row in weights:
        top = sum(int(w) * columns[i, 0] for i, w in enumerate(row))
        bottom = sum(int(w) * columns[i, 1] for i, w in enumerate(row))
        figures.append(top / bottom)
    widened = np.sqrt(count / (count - 1)) * scipy_stats.t.ppf([0.05, 0.95], count - 1)
    low, high = np.quantile(figures, scipy_stats.norm.cdf(widened))
    interval = stats.ratio(*columns.T, level=0.9, resamples=150, seed=5, method="percentile")
    assert (interval.value, interval.low, interval.high) == pytest.approx(
        (columns[:, 0].sum() / columns[:, 1].sum(), low, high)
    )
    assert interval.prompts == count
    assert interval.level == 0.9


def test_a_ratio_of_few_prompts_is_one_of_sums_without_an_interval():
    found = stats.estimate(np.array([[2.0, 1.0], [4.0, 8.0]]), stats.quotient)
    assert found.value == pytest.approx(6 / 9)
    assert np.isnan([found.low, found.high]).all()
    assert found.prompts == 2


def test_bca_follows_the_skew_and_constants_have_no_width():
    heavy = np.random.default_rng(4).pareto(2.5, 30) + 1
    bca, plain = (
        stats.ratio(heavy, np.ones(30), method=method) for method in ("bca", "percentile")
    )
    assert bca.high > plain.high
    assert bca.low > plain.low
    same = stats.ratio(np.full(9, 3.0), np.full(9, 2.0))
    assert (same.value, same.low, same.high) == (1.5, 1.5, 1.5)


def test_intervals_are_seeded_and_keep_column_order():
    a, r = prompts(np.random.default_rng(0), 20)
    assert stats.ratio(a, r, seed=1) == stats.ratio(a, r, seed=1) != stats.ratio(a, r, seed=2)


def test_swap_test_has_its_level_and_power(record_property):
    """Under the null P(p <= 0.1) <= 0.1: over 66 of 400 has probability 4e-5. Against a true 10% it
    rejects almost always.
    """
    low, seen = 0, 0
    for seed in range(TRIALS):
        rng = np.random.default_rng(seed)
        first, second = (np.stack(prompts(rng, 20), axis=1) for _ in range(2))
        low += (
            stats.swap_test(
                first, second, lambda t: t[..., 0] / t[..., 1], resamples=199, seed=seed
            )
            <= 0.1
        )
        better = first + np.stack((rng.poisson(0.15 * first[:, 1]), np.zeros(20)), axis=1)
        seen += (
            stats.swap_test(
                first, better, lambda t: t[..., 0] / t[..., 1], resamples=199, seed=seed
            )
            <= 0.1
        )
    record_property(
        "measured",
        f"swap test at 0.1: rejects {low / TRIALS:.1%} of nulls, {seen / TRIALS:.1%} of true 10% "
        "differences",
    )
    assert low <= 66
    assert scipy_stats.binom.sf(66, TRIALS, 0.1) < 4.1e-5
    assert seen > 380


@pytest.mark.parametrize(
    "call",
    [
        lambda: stats.ratio(np.ones(7), np.ones(7)),
        lambda: stats.ratio(np.ones(9), np.zeros(9)),
        lambda: stats.ratio(np.full(9, np.nan), np.ones(9)),
        lambda: stats.bootstrap(np.ones(9), lambda t: t),
        lambda: stats.swap_test(np.ones((9, 2)), np.ones((8, 2)), lambda t: t[..., 0]),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_invalid_input_is_refused_in_one_line(call):
    with pytest.raises(ValueError) as error:
        call()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) > 20


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

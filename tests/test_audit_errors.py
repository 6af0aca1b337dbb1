"""The audit's error rates by their definitions: levels, limits and p-values, one by one."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from real.audit.auditor import _divergences, excess_alarms
from real.audit.bias import BIAS_TILTS, DrafterBias, drafter_bias
from real.audit.rounding import ScoreGaps, tolerance_of
from real.audit.sampling_tests import (
    POWER,
    TEMPERATURE_TILTS,
    SamplingStatistics,
    detectable_temperature,
    detectable_variation,
    sampling_tests,
)

RISK = 0.06


def statistics(pit, tilt=0.0):
    """Of tokens with these transforms, and this log likelihood ratio for every alternative."""
    n, one = len(pit), np.ones(len(pit))
    tilts = np.full((n, len(TEMPERATURE_TILTS)), tilt)
    return SamplingStatistics(one, np.zeros(n, bool), one, one, 0 * one, np.array(pit), tilts)


def bias(n, tilt=0.0):
    one = np.ones(n)
    return DrafterBias(0 * one, one, one, one, np.full((n, len(BIAS_TILTS)), tilt))


def halves(low, high):
    return [0.25] * low + [0.75] * high


def binomial(n, p):
    """P(X = k), k = 0 .. n."""
    return [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


@pytest.mark.parametrize("drafter, tests", [(None, 3), (bias(40), 4)])
def test_risk_is_shared_by_the_tests(drafter, tests):
    """McDiarmid: P(d >= E d + t) <= exp(-2 N t^2), at a level of risk / tests."""
    found = sampling_tests(statistics(halves(20, 20)), drafter, RISK)
    above = found.variation_limit - found.expected_variation
    assert math.exp(-2 * 40 * above**2) == pytest.approx(RISK / tests)
    assert found.detectable_variation == detectable_variation(40, 2, RISK / tests)


@pytest.mark.parametrize("p_value, alarms", [(0.99, ("temperature",)), (1.01, ())])
def test_temperature_is_tested_at_its_level(p_value, alarms):
    """The mean likelihood ratio is 1 / p, whatever the number of alternatives."""
    level = RISK / 3
    tilt = -math.log(p_value * level) / 40
    found = sampling_tests(statistics(halves(20, 20), tilt), None, RISK)
    assert found.p_temperature == pytest.approx(p_value * level)
    assert found.alarms == alarms


@pytest.mark.parametrize("p_value, alarms", [(0.99, ("drafter bias",)), (1.01, ())])
def test_drafter_bias_is_tested_at_its_level(p_value, alarms):
    level = RISK / 4
    tilt = -math.log(p_value * level) / 40
    found = sampling_tests(statistics(halves(20, 20)), bias(40, tilt), RISK)
    assert found.p_bias == pytest.approx(p_value * level)
    assert found.alarms == alarms


@pytest.mark.parametrize("n, bins", [(39, 1), (40, 2), (60, 3), (65, 3), (400, 20), (900, 20)])
def test_bins_hold_twenty_tokens(n, bins):
    found = sampling_tests(statistics([0.5] * n), None, RISK)
    assert found.bins == bins
    if bins == 1:
        assert found.expected_variation == 0
        return
    mean = sum(q * abs(k / n - 1 / bins) for k, q in enumerate(binomial(n, 1 / bins)) if q)
    assert found.expected_variation == pytest.approx(bins / 2 * mean)


def test_chi_square_of_two_bins_is_a_squared_normal():
    for low, high in ((30, 10), (22, 18)):
        found = sampling_tests(statistics(halves(low, high)), None, RISK)
        assert found.chi2 == pytest.approx((low - high) ** 2 / 40)
        assert found.p_chi2 == pytest.approx(math.erfc(abs(low - high) / math.sqrt(80)))
        assert found.total_variation == pytest.approx(abs(low - high) / 80)


def test_detectable_variation_of_two_bins_is_a_shifted_normal():
    """The square of a normal around s passes its critical value with probability 0.99."""

    def tail(x):
        return math.erfc(x / math.sqrt(2)) / 2

    n, level = 400, 0.01
    shift = 2 * math.sqrt(n) * detectable_variation(n, 2, level)
    low, high = 0.0, 10.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if 2 * tail(middle) > level else (low, middle)
    assert tail(high - shift) + tail(high + shift) == pytest.approx(0.99, abs=1e-6)


def test_detectable_temperature_is_that_of_its_power():
    """At the effect found, a score 2.3263 deviations below its mean is just an alarm."""
    n, level = 2000, 0.01
    x = detectable_temperature(statistics([0.5] * n), level)
    assert (POWER, 0 < x < 1) == (0.99, True)
    score, h = x * n - 2.3263478740408408 * math.sqrt(n), np.abs(TEMPERATURE_TILTS)
    alarm = math.log(len(TEMPERATURE_TILTS) / level)
    assert (h * score - h * h * n / 2).max() == pytest.approx(alarm)


def test_drafter_bias_by_enumeration():
    """All tokens of a vocabulary: a score of mean 0 under p, and alternatives that sum to 1."""
    p, q = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    found = drafter_bias(p.expand(4, 4), q.expand(4, 4), (0, 1, 2, 3))
    p, q = p.numpy(), q.numpy()
    assert p @ found.score == pytest.approx(0, abs=1e-12)
    assert found.variance == pytest.approx([p @ found.score**2] * 4)
    assert found.drafter_mean == pytest.approx([q @ found.score] * 4)
    assert found.drafter_square == pytest.approx([q @ found.score**2] * 4)
    assert p @ np.exp(found.tilt) == pytest.approx(np.ones(len(BIAS_TILTS)))


def test_near_ties_are_excused_up_to_their_share():
    n, share, risk = 1000, 0.001, 1e-4
    tails = np.cumsum(binomial(n, share)[::-1])[::-1]
    most = int(np.argmax(tails < risk))
    near, far = SimpleNamespace(excused=True), SimpleNamespace(excused=False)
    assert excess_alarms([near] * (most - 1), n, share, risk, "x") == []
    (alarm,) = excess_alarms([near] * most, n, share, risk, "x")
    assert alarm.startswith(f"{most} of 1000 x, each within rounding")
    assert excess_alarms([near, far], n, share, risk, "x") == ["1 of 1000 x"]


def test_a_gap_is_excused_within_either_tolerance():
    tolerance = tolerance_of("float32")
    nats, ulps = tolerance.nats, tolerance.ulps
    gap = np.array([nats / 2, nats * 9, nats * 9, nats, nats * 9])
    units = np.array([ulps * 9, ulps / 2, ulps * 9, ulps * 9, ulps])
    count = len(gap)
    parts = [ScoreGaps(np.zeros(count, int), gap, gap, units, gap)]
    places = [(0, 0, n, 1) for n in range(count)]
    divergences, _, _ = _divergences(parts, places, tolerance)
    assert [d.excused for d in divergences] == [True, True, False, True, True]


def test_tolerance_is_that_of_the_coarsest_dtype():
    assert tolerance_of("float64", "bfloat16").dtype == "bfloat16"
    assert tolerance_of("float32", "float64").dtype == "float32"
    assert tolerance_of("float64").nats < tolerance_of("float32").nats < 0.3

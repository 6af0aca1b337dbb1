"""Policies compared in pairs: coverage and false alarms on known truth, and hand counts."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests

from simspec import CostModel, replay, synthetic
from simspec.numerics.stats import Estimate, holm
from simspec.policies import BUILTIN
from simspec.replay.evaluation import Evaluation
from simspec.reports.comparison import (
    Comparison,
    Question,
    compare_seconds,
    comparisons,
    corrected,
    difference_error,
    verdict,
)

TRIALS = 1000 if os.environ.get("SIMSPEC_SLOW") else 250
QUICK = Question(resamples=999)
PROMPTS = 60
BASELINE = 1 / 0.8


def seconds(seed, gain=1.0, prompts=PROMPTS):
    """(plain, ours, theirs): lengths and hardness vary by prompt, and so does the gain."""
    rng = np.random.default_rng(seed)
    plain = rng.integers(10, 60, prompts).astype(float)
    hard = plain * rng.gamma(20, 0.8 / 20, prompts)
    first, second = rng.gamma(60, 1 / 60, (2, prompts))
    return plain, hard * first / gain, hard * second


def pair(plain, ours, theirs, question=QUICK):
    """The comparison of a with b."""
    found = Evaluation({"a": ours, "b": theirs}, np.ones(len(plain), int), plain, {})
    return compare_seconds("r", found, "a", "b", question)


def compared(seed, gain=1.0, question=QUICK):
    plain, ours, theirs = seconds(seed, gain)
    question = replace(question, seed=seed % 5)
    return pair(plain, ours, theirs, question)


def test_intervals_cover_the_true_difference(record_property):
    """At 95% or more, at most 92.8% of 1,000 hold with probability 0.001 (of 250: 90%)."""
    truth = BASELINE * 1.1 - BASELINE
    hits = sum(truth in compared(seed, 1.1).difference for seed in range(TRIALS))
    print(f"compare: {hits / TRIALS:.1%} of {TRIALS} 95% intervals hold the true difference")
    record_property("coverage", hits / TRIALS)
    low = scipy_stats.binom.ppf(1e-3, TRIALS, 0.94)
    high = scipy_stats.binom.ppf(1 - 1e-3, TRIALS, 0.965)
    assert low <= hits <= high
    wrong = sum(1.6 * truth in compared(seed, 1.1).difference for seed in range(100))
    assert wrong < 80


def test_false_verdicts_are_as_rare_as_the_level_says(record_property):
    """Three comparisons without a difference: any 'faster' or 'slower' in at most 5% of families.

    More than 8% of 250 (7% of 1,000) would occur with probability below 0.01.
    """
    alarms = 0
    question = replace(QUICK, margin=0.0)
    for seed in range(TRIALS):
        family = corrected([compared(3 * seed + i, question=question) for i in range(3)], question)
        alarms += any(c.verdict in ("faster", "slower") for c in family)
    print(f"compare: {alarms / TRIALS:.1%} of {TRIALS} families without a difference claim one")
    record_property("alarms", alarms / TRIALS)
    assert alarms <= scipy_stats.binom.ppf(0.99, TRIALS, 0.05)
    clear = corrected([compared(seed, 1.2, question) for seed in range(3)], question)
    assert [c.verdict for c in clear] == ["faster"] * 3


def test_the_detectable_difference_is_found_as_often_as_the_power_says():
    question = replace(QUICK, margin=0.0)
    single = [corrected([compared(seed, question=question)], question)[0] for seed in range(20)]
    gain = 1 + float(np.mean([row.detectable for row in single])) / BASELINE
    found = sum(
        corrected([compared(seed, gain, question)], question)[0].verdict == "faster"
        for seed in range(1, 151)
    )
    assert 0.68 <= found / 150 <= 0.9


def test_pairing_is_what_makes_differences_visible():
    plain, ours, theirs = seconds(3, 1.1)
    paired = pair(plain, ours, theirs)
    order = np.random.default_rng(0).permutation(PROMPTS)
    broken = pair(plain, ours, theirs[order])
    assert paired.error < 0.7 * broken.error


@given(st.integers(0, 10**6), st.integers(8, 20))
def test_error_is_the_jackknife_by_its_definition(seed, prompts):
    plain, ours, theirs = seconds(seed, prompts=prompts)
    without = []
    for i in range(prompts):
        left = np.arange(prompts) != i
        without.append(
            plain[left].sum() / ours[left].sum() - plain[left].sum() / theirs[left].sum()
        )
    spread = sum((d - sum(without) / prompts) ** 2 for d in without)
    wanted = math.sqrt((prompts - 1) / prompts * spread)
    assert difference_error(plain, ours, theirs) == pytest.approx(wanted, rel=1e-6)


@settings(max_examples=20)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holms_correction_is_that_of_statsmodels(p):
    assert holm(np.array(p)) == pytest.approx(multipletests(p, method="holm")[1], abs=1e-12)


def test_holms_correction_by_hand():
    one = compared(0)
    raw = [replace(one, p=p) for p in (0.04, 0.01, 0.03)]
    assert [c.p for c in corrected(raw, QUICK)] == pytest.approx([0.06, 0.03, 0.06])
    assert corrected([], QUICK) == []


@pytest.mark.parametrize(
    "low, high, p, says",
    [
        (-0.005, 0.009, 0.01, "tie"),
        (-0.005, 0.011, 0.01, "faster"),
        (-0.5, -0.1, 0.05, "slower"),
        (-0.5, 0.1, 0.06, "undecided"),
    ],
)
def test_verdicts(low, high, p, says):
    one = Estimate(1.0, 1.0, 1.0, 0.95, 9)
    difference = Estimate((low + high) / 2, low, high, 0.95, 9)
    row = Comparison("r", "a", "b", one, one, difference, 0.1, p, "", 0.1, None)
    assert verdict(row, p, Question()) == says


def test_prompts_needed_bring_the_detectable_difference_to_the_one_seen():
    (row,) = corrected([compared(1, 1.01)], QUICK)
    assert row.prompts_needed == math.ceil(
        PROMPTS * (row.detectable / abs(row.difference.value)) ** 2
    )
    same = seconds(1)[1]
    equal = pair(same, same, same)
    assert corrected([equal], QUICK)[0].prompts_needed is None
    assert corrected([equal], QUICK)[0].verdict == "tie"


def test_figures_are_those_of_replays_and_the_baseline_is_the_best_fixed_length():
    trace = synthetic.iid(0.7, 20, 40, 5)
    cost = CostModel.from_ratio(0.2, 5)
    (row,) = comparisons({"t": trace}, ["fixed:5"], cost, question=QUICK)

    def speedup(k):
        rounds = replay(trace, BUILTIN["fixed"](k), seed=0)
        return (
            trace.rows * cost.baseline / sum(cost.draft[r] + cost.verify[r] for r in rounds.drafted)
        )

    best = max(range(6), key=speedup)
    assert row.against == f"fixed:{best}"
    assert row.speedup.value == pytest.approx(speedup(5))
    assert row.baseline.value == pytest.approx(speedup(best))
    assert row.difference.value == pytest.approx(speedup(5) - speedup(best))
    (named,) = comparisons({"t": trace}, ["fixed:5", "fixed:2"], cost, "fixed:2", question=QUICK)
    assert (named.policy, named.against) == ("fixed:5", "fixed:2")

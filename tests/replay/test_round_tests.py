"""Tests of rounds under the rejection rule: their false alarms, their power, and planted faults."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom
from strategies import drawn_recording

from simspec import CostModel, Trace, policies, replay
from simspec.numerics.stats import monte_carlo_test
from simspec.replay.replay import replays
from simspec.replay.round_tests import (
    OWN_TESTS,
    PAIRED_TESTS,
    POWER,
    ReplaySettings,
    check_rounds,
    round_p_values,
)

K, COST = 4, CostModel.from_ratio(0.2, 4)


def lossy(trace: Trace, loss: float) -> Trace:
    return replace(trace, ratio=(trace.ratio * (1 - loss)).astype(np.float32))


def settings(text: str, seed: int, risk: float) -> ReplaySettings:
    return ReplaySettings(policies.make(text, None, COST), COST, seed, risk)


def run_of(trace: Trace, text: str, seed: int, loss: float = 0.0):
    policy = settings(text, 0, 0.1).policy
    return replay(lossy(trace, loss), policy, seed=seed, cost=COST)


@pytest.mark.parametrize("text", ["fixed:3", "beta_ts", "beta_ts:scope=stream"])
def test_false_alarms_are_at_most_as_stated(text):
    """Each run replays its own sequence, each recording holds another of the same prompts.
    If a test's p-value were <= 0.1 in more than 10% of 150 runs, then in over 31 with probability
    above 1e-4: no more are allowed."""
    trials, found = 150, {}
    for trial in range(trials):
        own, recording = drawn_recording(2 * trial), drawn_recording(2 * trial + 1)
        rounds = run_of(own, text, seed=10_000 + trial)
        p_values, _ = round_p_values(rounds, own, settings(text, 100 * trial, 0.5), 19, recording)
        for name, p in p_values.items():
            found[name] = found.get(name, 0) + (p <= 0.1)
    assert binom.sf(31, trials, 0.1) < 1e-4
    assert max(found.values()) <= 31, found
    assert set(found) == {*OWN_TESTS, *(() if "stream" in text else PAIRED_TESTS)}


@pytest.mark.parametrize("text", ["fixed:3"])
def test_control_the_stated_loss_is_detected(text):
    """At the stated loss 99% of runs raise an alarm. If 95% or more do, at least 12 of 16 hold
    with probability above 1 - 1e-3."""
    trials, alarms = 16, 0
    for trial in range(trials):
        own = drawn_recording(trial, prompts=30)
        tests = check_rounds(run_of(own, text, 7), own, settings(text, 100, 0.05))
        assert 0 < tests.detectable < 0.5
        lost = run_of(own, text, seed=10_000 + trial, loss=tests.detectable)
        alarms += not check_rounds(lost, own, settings(text, 100, 0.05)).equal
    assert binom.cdf(11, trials, 0.95) < 1e-3
    assert alarms >= 12
    assert POWER == 0.99


def test_control_another_acceptance_of_equal_mean_is_detected():
    """Easy and hard prompts exchanged: as many rounds in all, others by prompt."""
    own = drawn_recording(3, prompts=40)
    half = own.rows // 2
    swapped = replace(own, ratio=np.roll(own.ratio, half, axis=0))
    rounds = run_of(swapped, "fixed:3", seed=5)
    p_values = dict(check_rounds(rounds, own, settings("fixed:3", 100, 0.01)).p_values)
    assert p_values["rounds by prompt"] <= 0.01 / 3
    assert p_values["rounds"] > 0.01


def test_control_a_recording_of_another_drafter_is_detected():
    """The run's rounds fit its own tokens; the recording promises more."""
    own, other = lossy(drawn_recording(1, prompts=60), 0.3), drawn_recording(2, prompts=60)
    tests = check_rounds(run_of(own, "fixed:3", 9), own, settings("fixed:3", 100, 0.01), other)
    assert set(tests.alarms) <= set(PAIRED_TESTS)
    assert PAIRED_TESTS[0] in tests.alarms


def test_few_prompts_are_not_paired_and_without_drafts_no_loss_is_detectable():
    own = drawn_recording(1, prompts=7)
    tests = check_rounds(run_of(own, "fixed:2", 1), own, settings("fixed:2", 5, 0.3), own)
    assert [name for name, _ in tests.p_values] == list(OWN_TESTS)
    assert tests.level == pytest.approx(0.1)
    assert tests.replays == 10
    tests = check_rounds(run_of(own, "fixed:0", 1), own, settings("fixed:0", 5, 0.3))
    assert tests.detectable == float("inf")
    assert tests.equal
    assert tests.spread == 0


def test_many_replays_are_the_single_ones():
    own = drawn_recording(4)
    policy = policies.parse("beta_ts:scope=stream")
    several = list(replays(own, policy, range(3), COST))
    assert several == [replay(own, policy, seed=seed, cost=COST) for seed in range(3)]
    assert several[0] != several[1]


def test_monte_carlo_p_values_are_ranks():
    assert monte_carlo_test([3, 1, 2, 3, 4]) == 3 / 5
    assert monte_carlo_test([9, 1, 2, 3]) == 1 / 4
    assert monte_carlo_test([0, 0, 0]) == 1

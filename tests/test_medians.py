"""Costs from timed rounds whose medians, means and extremes all differ."""

import numpy as np
import pytest

from real.measure.job import ALONE, FEATURES, FIXED, PLAIN, Job
from real.measure.medians import Priced, median_cost
from real.measure.round_times import TimedRound
from real.measure.samples import PASS, Samples

ASK = 0.25
"""Seconds of a call of the policy."""


class Speed:
    """A machine whose fast minutes end at `limit`."""

    limit, typical = 1.5, 1.0


def put(samples, job, parts, computed=0, backlog=0, first=False, pace=0.0, slowest=0.0):
    """Adds rounds of `parts`: (drafting, verification, policy, other) seconds each."""
    for part in parts:
        seconds = np.array(part, np.float64)
        samples.rounds[job].append(TimedRound(first, computed, 0, backlog, seconds, pace, slowest))


def skewed(*passes, behind=0.0):
    """(the target's rounds, a drafter's): three of each kind, the last one very slow."""
    target, own = Samples(), Samples()
    put(target, Job(PLAIN), [(0, v, ASK, 0) for v in (4, 5, 30)])
    for j, seconds in enumerate(((6, 7, 80), (8, 9, 100)), 1):
        put(target, Job(ALONE, j), [(0, v, 0, 0) for v in seconds])
        rows = [
            (d, v + behind, ASK * (j + 1), 0)
            for d, v in zip(((1, 2, 40), (3, 4, 60))[j - 1], passes or seconds)
        ]
        put(own, Job(FIXED, j), rows, computed=j)
    late = [(d, 0, 2 * ASK, 0) for d in (3, 4, 50)]
    put(own, Job(FIXED, 1), late, computed=1, backlog=1)
    read = [(0, 0, 3 * ASK + 2 * f, 0) for f in (0.5, 1.5, 10)]
    put(own, Job(FEATURES, 2), read, computed=2)
    return target, own


def test_every_cost_is_a_median():
    cost = median_cost(*skewed(), Priced(2, 0, False, False))
    assert cost.baseline == 5 + ASK
    assert cost.verify.tolist() == [5, 7, 9]
    assert cost.draft.tolist() == [0, 2 + ASK, 4 + 2 * ASK]
    assert cost.catch_up.tolist() == [0, 2, 2, 2, 2]
    assert cost.feature == pytest.approx(1.5)
    assert cost.overhead == ASK


def test_a_draft_is_charged_for_its_pass_only_beyond_noise():
    """Ten seconds more behind drafts: three rounds are no evidence, thirty equal ones are."""
    noisy = median_cost(*skewed(behind=10), Priced(2, 0, False, True))
    assert noisy.draft.tolist() == [0, 2 + ASK, 4 + 2 * ASK]
    target, own = Samples(), Samples()
    put(target, Job(PLAIN), [(0, 5, 0, 0)] * 30)
    put(target, Job(ALONE, 1), [(0, 7, 0, 0)] * 30)
    put(own, Job(FIXED, 1), [(2, 17, 0, 0)] * 30, computed=1)
    sure = median_cost(target, own, Priced(1, 0, False, True))
    assert sure.draft.tolist() == [0, 12]
    assert sure.verify.tolist() == [5, 7]


def test_first_rounds_count_where_there_are_no_others():
    samples = Samples()
    put(samples, Job(PLAIN), [(0, 100, 0, 0)], first=True)
    assert samples.seconds(Job(PLAIN)) == [100]
    put(samples, Job(PLAIN), [(0, 1, 0, 0), (0, 2, 0, 0)])
    assert samples.seconds(Job(PLAIN), PASS) == [1, 2]


def test_slow_minutes_count_where_there_are_no_others():
    samples = Samples(Speed())
    put(samples, Job(PLAIN), [(0, 9, 0, 0)], slowest=2.0)
    assert samples.seconds(Job(PLAIN)) == [9]
    put(samples, Job(PLAIN), [(0, 3, 0, 0)], slowest=1.5)
    assert samples.seconds(Job(PLAIN)) == [3]


def test_seconds_are_scaled_to_the_typical_pace():
    samples = Samples(Speed())
    put(samples, Job(PLAIN), [(0, 3, 0, 1)], pace=2.0)
    assert samples.seconds(Job(PLAIN)) == [2]


def test_drafts_behind_a_backlog_count_where_there_are_no_others():
    samples = Samples()
    put(samples, Job(FIXED, 1), [(9, 0, 0, 0)], backlog=2)
    assert samples.drafting(1) == [9]
    put(samples, Job(FIXED, 1), [(4, 0, 1, 0)])
    assert samples.drafting(1) == [5]


@pytest.mark.parametrize("wrong", [10**400, -(10**400), float("nan"), float("inf"), "1", None])
def test_rounds_that_no_float_holds_are_refused(wrong):
    row = ["plain", 0, False, 0, 0, 0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.1]
    Samples().extend([row])
    for place in (6, 9):
        with pytest.raises(ValueError, match="expected a job's name and numbers"):
            Samples().extend([row[:place] + [wrong] + row[place + 1 :]])

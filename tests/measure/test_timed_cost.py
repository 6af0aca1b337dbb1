"""Costs from timed rounds whose trimmed means, means and extremes all differ."""

import numpy as np
import pytest

from real.measure.estimate import TRIM, Priced, estimate, timed_cost
from real.measure.timing import ALONE, FEATURES, FIXED, PASS, PLAIN, Job, Pace, Samples, TimedRound

ASK = 0.25
"""Seconds of a call of the policy."""


def put(samples, job, parts, computed=0, backlog=0, first=False, pace=0.0, block=0):
    """Adds rounds of `parts`: (drafting, verification, policy, other) seconds each."""
    for part in parts:
        seconds = np.array(part, np.float64)
        samples.rounds[job].append(TimedRound(first, computed, 0, backlog, seconds, pace, block))


def paced(*blocks):
    """Samples of timing blocks with these one-row passes."""
    pace = Pace()
    pace.extend([[0.0, *passes] for passes in blocks])
    return Samples(pace)


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


def middle(low, median, high):
    """Mean of the middle 1 - 2 TRIM of three equal shares."""
    outer = 1 / 3 - TRIM
    return (outer * low + median / 3 + outer * high) / (1 - 2 * TRIM)


def test_every_cost_is_a_trimmed_mean():
    cost = timed_cost(*skewed(), Priced(2, 0, False, False))
    plain = middle(4, 5, 30)
    assert cost.baseline == pytest.approx(plain + ASK)
    assert cost.verify.tolist() == pytest.approx([plain, middle(6, 7, 80), middle(8, 9, 100)])
    drafts = middle(1, 2, 40), middle(3, 4, 60)
    assert cost.draft.tolist() == pytest.approx([0, drafts[0] + ASK, drafts[1] + 2 * ASK])
    late = middle(3, 4, 50) + 2 * ASK - (drafts[0] + 2 * ASK)
    assert cost.catch_up.tolist() == pytest.approx([0, *[late] * 4])
    assert cost.feature == pytest.approx(middle(0.5, 1.5, 10))
    assert cost.overhead == ASK


def test_a_draft_is_charged_for_its_pass_only_beyond_noise():
    """Ten seconds more behind drafts: three rounds are no evidence, thirty equal ones are."""
    noisy = timed_cost(*skewed(behind=10), Priced(2, 0, False, True))
    quiet = timed_cost(*skewed(), Priced(2, 0, False, True))
    assert noisy.draft.tolist() == quiet.draft.tolist()
    target, own = Samples(), Samples()
    put(target, Job(PLAIN), [(0, 5, 0, 0)] * 30)
    put(target, Job(ALONE, 1), [(0, 7, 0, 0)] * 30)
    put(own, Job(FIXED, 1), [(2, 17, 0, 0)] * 30, computed=1)
    sure = timed_cost(target, own, Priced(1, 0, False, True))
    assert sure.draft.tolist() == [0, 12]
    assert sure.verify.tolist() == [5, 7]


def taken(samples, *rest):
    return samples.seconds(Job(PLAIN), *rest).seconds.tolist()


def test_first_rounds_count_where_there_are_no_others():
    samples = Samples()
    put(samples, Job(PLAIN), [(0, 100, 0, 0)], first=True)
    assert taken(samples) == [100]
    put(samples, Job(PLAIN), [(0, 1, 0, 0), (0, 2, 0, 0)])
    assert taken(samples, PASS) == [1, 2]


def test_seconds_are_scaled_to_the_typical_pace():
    samples = paced([1.0, 1.0, 1.0], [2.0, 2.0])
    put(samples, Job(PLAIN), [(0, 3, 0, 1)], pace=2.0, block=1)
    assert taken(samples) == [2]


def test_disturbed_and_undrawn_blocks_count_where_there_are_no_others():
    """Blocks that a bootstrap did not draw; the control draws the other block alone."""
    for blocks, draws in (([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]], None), ([[1.0]] * 3, [0, 2, 1])):
        samples = paced(*blocks)
        put(samples, Job(PLAIN), [(0, 9, 0, 0)], block=0)
        assert estimate(samples.seconds(Job(PLAIN))).seconds == 9
        put(samples, Job(PLAIN), [(0, 3, 0, 0)], block=1)
        samples.draws = draws and np.array(draws)
        assert estimate(samples.seconds(Job(PLAIN))).seconds == 3


def test_drafts_behind_a_backlog_count_where_there_are_no_others():
    samples = Samples()
    put(samples, Job(FIXED, 1), [(9, 0, 0, 0)], backlog=2)
    assert samples.drafting(1).seconds.tolist() == [9]
    put(samples, Job(FIXED, 1), [(4, 0, 1, 0)])
    assert samples.drafting(1).seconds.tolist() == [5]

"""Counts and lengths that exports are made of, by hand."""

import numpy as np
import pytest

from simspec import synthetic
from simspec.engines.choice import TIE, Limits, Schedule, best_length
from simspec.engines.draft_acceptance import acceptance_at


def test_rounds_without_a_draft_are_no_rejections():
    """Three tokens in rounds of one draft: the last round has no room for one."""
    trace = synthetic.iid(1.0, 1, 3, 2)
    found = acceptance_at([trace], 1)
    assert found.histogram.tolist() == [0, 1]
    assert (found.mean_length, found.marginals) == (2, [1])


def test_of_tied_lengths_the_shortest_is_exported():
    best = 1.0
    near, far = best / (1 - TIE / 2), best / (1 - 2 * TIE)
    assert best_length([9, near, best, near]) == 1
    assert best_length([9, far, best, near]) == 2
    assert best_length([9, near, best, near], shortest=2) == 2
    assert best_length([9, far, best, near], longest=1) == 1


def test_ranges_of_a_schedule_meet_and_join():
    schedule = Schedule((1, 4, 8, 16), (5, 5, 3, 0))
    assert schedule.steps == [(1, 4, 5), (5, 8, 3), (9, 16, 0)]
    assert [schedule.at(b) for b in (1, 2, 4, 5, 8, 9, 16)] == [5, 5, 5, 3, 3, 0, 0]


@pytest.mark.parametrize("batch, cap", [(1, 63), (8, 7), (64, 0), (100, 0)])
def test_captured_rows_limit_a_length(batch, cap):
    """A batch verifies (length + 1) rows for each sequence."""
    limits = Limits(captured=64)
    assert limits.cap(batch) == cap
    assert limits.of(Schedule((batch,), (40,))).length == (min(cap, 40),)


def test_mean_length_counts_the_bonus_token():
    trace = synthetic.iid(0.0, 2, 10, 3)
    assert acceptance_at([trace], 2).mean_length == 1
    assert np.array_equal(acceptance_at([trace], 2).histogram[1:], [0, 0])

"""Timing jobs in one sequence: those that started behind a backlog come once more."""

from types import SimpleNamespace

import pytest

from real.measure.timing import FIXED, EndOfJobs, Job, JobPlan

ONE, TWO = Job(FIXED, 1), Job(FIXED, 2)


def ran(retries, room=100):
    """Jobs of the units one, two, one; the first draft is accepted whole, so a row is left."""
    plan = JobPlan({ONE: SimpleNamespace(K=1), TWO: SimpleNamespace(K=2)}, [[ONE], [TWO], [ONE]],
                   room, retries)  # fmt: skip
    position = 0
    with pytest.raises(EndOfJobs):
        while True:
            accepted = 0 if position else 1
            size = plan.job.size
            plan.end_round(
                SimpleNamespace(computed=size, drafted=size, accepted=accepted, position=position)
            )
            position += accepted + 1
    return plan.jobs


def test_jobs_behind_a_backlog_are_repeated():
    assert ran(retries=3) == [ONE, TWO, ONE, TWO]
    assert ran(retries=0) == [ONE, TWO, ONE]


def test_a_sequence_ends_where_its_room_does():
    assert ran(retries=3, room=1) == [ONE]

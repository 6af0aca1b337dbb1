"""Bare batched passes: medians, a run before that does not count, and waits for the device."""

import pytest
from toy_lm import toy_decoder

from real.measure.blocks import BatchedPasses
from real.measure.timing import BACKLOG, STEPS, VERIFY, Job


def passes(**options):
    decoder = toy_decoder(0)
    return BatchedPasses(decoder, decoder, 0, 1, 2, 0, **options)


def test_seconds_are_medians():
    bare = passes()
    bare.times |= {
        Job(VERIFY, 0): [[1.0], [2.0], [9.0]],
        Job(VERIFY, 1): [[3.0], [4.0], [50.0]],
        Job(STEPS): [[1.0], [2.0], [30.0]],
        Job(BACKLOG, 0): [[1.0], [1.0], [2.0]],
    }
    verify, draft, catch_up = bare.seconds()
    assert verify.tolist() == [2, 4]
    assert draft.tolist() == [0, 2]
    assert catch_up.tolist() == [0] * 5


def test_first_run_is_not_counted():
    bare, ran = passes(), []
    bare._verify = lambda size: lambda: [ran.append(size)] and [float(len(ran))]
    bare.run(Job(VERIFY, 0), 3)
    assert bare.times == {Job(VERIFY, 0): [[2.0], [3.0], [4.0]]}


def test_a_pass_ends_when_the_device_has_finished():
    now = [0.0]

    def wait():
        now[0] += 1.0

    bare = passes(timer=lambda: now[0])
    bare.wait = wait
    bare.run(Job(VERIFY, 0), 1)
    assert bare.times[Job(VERIFY, 0)] == [[1.0]]


def test_seconds_are_scaled_to_the_first_pace():
    bare = passes()
    for seconds, pace in ((4.0, 2.0), (4.0, 4.0)):
        bare.waiting.append([seconds])
        kept = bare.waiting[-1]
        bare.settle(pace, pace)
        assert kept == pytest.approx([4.0 * 2.0 / pace])

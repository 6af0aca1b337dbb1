"""The machine's pace: medians of the newest plain steps."""

from types import SimpleNamespace

import numpy as np

from real.measure import pace as module
from real.measure.job import PLAIN, Job
from real.measure.pace import Pace
from real.measure.round_times import TimedRound


def paced(monkeypatch, *turns):
    """A pace whose measurements take the seconds of `turns`, one after the other."""
    left = iter(turns)

    class Block:
        def __init__(self, target, drafter, rule, prompt, jobs, samples):
            self.samples = samples

        def run(self, rng, rounds, counted, precision):
            rows = [np.array([0, seconds, 0, 0]) for seconds in next(left)]
            self.samples.rounds[Job(PLAIN)] += [TimedRound(False, 0, 0, 0, row) for row in rows]

    monkeypatch.setattr(module, "LoopBlock", Block)
    return Pace(None, None, [1])


def test_pace_is_the_median_of_the_newest_steps(monkeypatch):
    settled = []
    pace = paced(monkeypatch, (1, 1, 5), (2, 2, 9), (10, 10, 10))
    pace.paced.append(SimpleNamespace(settle=lambda *both: settled.append(both)))
    for _ in range(3):
        pace.measure()
    assert pace.seconds == [1, 2, 10]
    assert settled == [(1, 2), (2, 10)]


def test_typical_pace_is_the_median_of_fast_ones(monkeypatch):
    pace = paced(monkeypatch)
    pace.seconds = [1.0, 1.0, 1.0, 1.25, 9.0]
    assert pace.limit == 1.3
    assert pace.typical == 1.0
    assert pace.share == 0.8

"""Phase costs of rounds whose means and medians differ."""

import numpy as np
import pytest
from doctored_scorecard import PRICE

from real.bench.phase_costs import RoundTimes, phase_costs
from real.measure.timing import TimedRound
from simspec import Rounds


def rounds(parts, computed, backlog=0):
    return [TimedRound(False, computed, computed, backlog, np.array(part)) for part in parts]


def test_every_phase_is_priced_by_its_mean():
    times = RoundTimes()
    times.plain += rounds([(0, 4.0, 1, 0), (0, 4, 1, 0), (0, 10, 4, 3)], 0)
    times.chains += rounds([(0, 2.0, 0, 1), (0, 2, 0, 1), (0, 5, 0, 4)], 0)
    times.chains += rounds([(1, 3.0, 0, 1), (2, 3, 0, 1), (9, 9, 3, 4)], 1)
    times.chains += rounds([(5, 5.0, 1, 2)] * 2 + [(20, 5, 1, 2)], 1, backlog=1)
    times.features += rounds([(0, 0.0, 2, 0), (0, 0, 2, 0), (0, 0, 11, 0)], 1)
    price = phase_costs(times, 1)
    assert price.drafting.tolist() == [0, 4]
    assert price.verification.tolist() == [3, 5]
    assert price.policy.tolist() == [0, 1]
    assert price.other.tolist() == [2, 2]
    assert price.catch_up.tolist() == [0, 6, 6, 6, 6]
    assert price.feature == pytest.approx(4)
    assert price.plain.tolist() == [0, 6, 2, 1]


def test_dropped_tokens_are_drafted_and_not_verified():
    one = Rounds(np.array([0, 1]), *(np.array([n]) for n in (0, 2, 1, 0)))
    assert PRICE.seconds(one).tolist() == [[2.5, 3.25, 0.625, 0.5]]

"""Coverage of a race's 95% intervals, by simulated races of known ratio.

Each of 4,000 simulated races of 20 prompts and 5 repeats yields an interval; 93 to 97% must hold
the true ratio. The standard error of a share of 95% is 0.34%: an interval of exact coverage fails
in fewer than one of a million seeds, one of 92% passes in 1%. Seeds are fixed.
"""

import numpy as np
import pytest
from simulated_races import simulated, true_ratio

from real.bench.race_rows import mean_of_ratios

RACES = 4000
LEAST, MOST = 0.93, 0.97


def covered(truth, interval=mean_of_ratios, **machine):
    """Share of simulated races whose interval holds the true ratio."""
    rng = np.random.default_rng(7)
    found = [interval(*simulated(rng, **machine)) for _ in range(RACES)]
    return np.mean([ratio.low <= truth <= ratio.high for ratio in found])


@pytest.mark.parametrize("bursts", [0.0, 0.02, 0.05])
def test_a_contestant_against_itself_has_ratio_one(bursts):
    assert LEAST <= covered(1.0, bursts=bursts) <= MOST


@pytest.mark.parametrize("spread", [0.05, 0.2, 0.4])
def test_a_faster_contestant_has_its_ratio(spread):
    truth = true_ratio(1.2, spread)
    assert LEAST <= covered(truth, ratio=1.2, spread=spread) <= MOST


def faster_of_repeats(work, seconds, other_work, other_seconds):
    """The former figure: each contestant's faster repeat; the interval is that of the means."""
    found = mean_of_ratios(work, seconds, other_work, other_seconds)
    best, other_best = (
        (each.sum(1) / time.sum(1)).max()
        for each, time in ((work, seconds), (other_work, other_seconds))
    )
    point = best / other_best
    return type(found)(point, found.low * point / found.value, found.high * point / found.value)


def test_control_faster_of_two_repeats_misses_its_interval():
    assert covered(1.0, faster_of_repeats, repeats=2) < LEAST


def test_control_without_blocks_the_drift_is_not_held():
    assert covered(1.0, blocks=False) < LEAST

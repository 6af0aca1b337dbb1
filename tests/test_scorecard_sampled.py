"""Scorecards of rejection recordings: time is predicted exactly, rounds in distribution."""

from dataclasses import replace

import numpy as np
import pytest
from test_run_sampled import recording
from test_scorecard import machine
from toy_lm import toy_cost

from real.bench.scoring import ScoreSettings, score

__all__ = ["machine"]
SETTINGS = ScoreSettings(prompts=26, repeats=5, seed=1)
OTHERS = 4  # prompts of the costs: a few, as the clock is exact


def test_errors_are_those_of_sampling_alone(machine):
    """On a simulated clock: other tokens a round are the whole error. It is under four times the
    noise of the repeats, whose draws differ; that of a recording without acceptance is more."""
    count = SETTINGS.prompts + OTHERS
    trace, pair = recording.__wrapped__("model", count, batch=1)  # of these layers: not for others
    _, row = score("toy", trace, pair, ["fixed:3"], toy_cost(4), SETTINGS)
    assert row.cost == pytest.approx(0, abs=1e-12)
    assert row.overhead == pytest.approx(0, abs=1e-12)
    assert np.log1p(row.rate_error) == pytest.approx(row.acceptance)
    assert 0 < row.noise < 0.1
    assert abs(row.error) < 4 * row.noise
    few = replace(SETTINGS, prompts=6, repeats=1)
    nothing = replace(trace, ratio=trace.ratio * 0).select(range(few.prompts + OTHERS))
    _, wrong = score("toy", nothing, pair, ["fixed:3"], toy_cost(4), few)
    assert wrong.error < -4 * row.noise

"""The price of theta alone, as `real.measure` times it."""

import pytest
from toy_lm import RULES, toy_pair

from real.decode.features import AcceptancePredictor
from real.measure import MeasureSettings
from real.measure.price import measure

K = 2


def test_predictor_is_timed_where_there_is_one(monkeypatch):
    """On a clock that advances by one at every reading: as many readings as a confidence takes."""
    ticks = iter(range(10**9))
    monkeypatch.setattr("real.decode.verify.perf_counter", lambda: float(next(ticks)))
    target, drafter = toy_pair("model")
    settings = MeasureSettings(context=(6,), repeats=2, seconds=0)
    assert measure(target, drafter, RULES["greedy"], K, settings).predictor is None
    width = target.decoder.config.width
    head = AcceptancePredictor(width, drafter.lm.config.width).requires_grad_(False)
    drafter.predictors = {"theta": head}
    cost = measure(target, drafter, RULES["greedy"], K, settings)
    assert 1 <= cost.predictor <= 2
    assert cost.feature == pytest.approx(2)

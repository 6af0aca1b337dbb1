"""Synthetic traces follow their distribution. Error rates are for the fixed seeds: |z| > 4 has
probability 6e-5 for a right generator.
"""

import numpy as np
import pytest

from simspec import replay, synthetic
from simspec.policies import fixed
from simspec.trace.quantization import LOG_ODDS


def z_by_depth(trace, alphas):
    """z of each depth's acceptance given the depths before, over rows whose text reaches that
    far.
    """
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    scores = []
    for depth, alpha in enumerate(alphas):
        tried = (trace.run >= depth) & (left > depth)
        hits, n = (trace.run[tried] > depth).sum(), tried.sum()
        scores.append((hits - n * alpha) / np.sqrt(n * alpha * (1 - alpha)))
    return np.array(scores)


@pytest.mark.parametrize("confidence", [False, True])
def test_acceptance_by_depth_and_a_wrong_rate_is_detected(confidence):
    alphas = [0.8, 0.6, 0.7]
    trace = synthetic.decaying(alphas, 20, 500, seed=4, confidence=confidence)
    assert (np.abs(z_by_depth(trace, alphas)) < 4).all()
    assert (np.abs(z_by_depth(trace, [0.75, 0.65, 0.65])) > 4).all()


def test_neighbouring_rows_are_independent():
    trace = synthetic.iid(0.6, 1, 20_000, 4, seed=8)
    first = trace.run >= 1
    z = np.corrcoef(first[:-1], first[1:])[0, 1] * np.sqrt(len(first))
    assert abs(z) < 4
    sticky = np.repeat(first[::2], 2)
    assert abs(np.corrcoef(sticky[:-1], sticky[1:])[0, 1] * np.sqrt(len(first))) > 4


def test_confidence_is_calibrated_and_a_shifted_one_is_not():
    trace = synthetic.iid(0.6, 20, 1000, 4, seed=3, confidence=True)
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    for shift, holds in ((0.0, True), (0.05, False)):
        scores = []
        for depth in range(3):
            tried = (trace.run >= depth) & (left > depth)
            p = np.clip(LOG_ODDS[trace.feature[tried, depth, 0]] + shift, 0, 1)
            for part in np.array_split(np.argsort(p), 4):
                hits = (trace.run[tried][part] > depth).sum()
                scores.append((hits - p[part].sum()) / np.sqrt((p[part] * (1 - p[part])).sum()))
        assert (np.abs(scores).max() < 4) == holds


def test_certain_and_impossible_acceptance_are_exact():
    rows = np.arange(30, 0, -1)
    assert (synthetic.iid(1.0, 1, 30, 5).run == np.minimum(5, rows)).all()
    assert (synthetic.iid(0.0, 1, 30, 5).run == 0).all()
    assert len(replay(synthetic.iid(1.0, 2, 30, 5), fixed(5))) == 10


def test_shape_and_determinism():
    trace = synthetic.iid(0.5, 3, 7, 4, seed=1)
    assert (trace.sequences, trace.rows, trace.K) == (3, 21, 4)
    assert trace.meta.rule == "synthetic"
    assert (trace.budget == 7).all()
    assert trace.meta.end_tokens == ()
    assert trace == synthetic.iid(0.5, 3, 7, 4, seed=1) != synthetic.iid(0.5, 3, 7, 4, seed=2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: synthetic.iid(1.5, 1, 1, 1), lambda: synthetic.iid(float("nan"), 1, 1, 1),
        lambda: synthetic.iid(0.5, 0, 1, 1), lambda: synthetic.iid(0.5, 1, 0, 1),
        lambda: synthetic.iid(0.5, 1, 1, 0), lambda: synthetic.decaying([[0.5]], 1, 1),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused_in_one_line(call):
    with pytest.raises(ValueError, match="expected") as caught:
        call()
    assert "\n" not in str(caught.value)

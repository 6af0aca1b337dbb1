"""The scalar acceptance predictor: in policies, and fitted to recordings."""

from dataclasses import replace

import numpy as np
import pytest
from rule_twins import threshold

from simspec import CostModel, Policy, PolicyError, replay, synthetic
from simspec.policies import cali_ts, make, parse
from simspec.policy.predictor import (
    ScalarPredictor,
    brier,
    examples,
    fit_predictor,
    reliability,
    split_by_task,
)
from simspec.trace.quantization import ENTROPY, LOG_ODDS


def test_policy_probability_equals_numpy():
    scalar = ScalarPredictor(0.3, 0.9, -0.4, 0.2)
    confidence, entropy = np.meshgrid([0.0, 1e-9, 0.2, 0.5, 0.99, 1.0], [0.0, 0.7, 9.0])
    for c, h in zip(confidence.ravel(), entropy.ravel()):
        assert threshold(cali_ts(predictor=scalar, side="model"), (0,), (c, h)) == pytest.approx(
            float(scalar.probability(c, h, 0)), abs=1e-12
        )
    policy, shown = cali_ts(predictor=scalar, side="model"), np.tile([0.6, 1.1], (16, 1))
    for slot in (1, 5, 11, 12, 16):  # the depth is capped at 10
        draws = float(scalar.probability(0.6, 1.1, slot - 1))
        answers = [
            policy.compiled()[0](np.array(policy.params), np.zeros(0), slot, shown, draws + d)[0]
            for d in (-1e-9, 1e-9)
        ]
        assert [bool(answer) for answer in answers] == [True, False]


@pytest.mark.parametrize("side", ["both", "model"])
def test_policies_read_the_token_just_drafted(side):
    """With nothing verified yet and a sure predictor the probability at slot j is theta_M of
    token j - 1, whatever the other tokens' features.
    """
    scalar = ScalarPredictor(0.3, 0.9, -0.4, 0.2)
    shown = np.stack((np.linspace(0.1, 0.9, 9), np.linspace(2.0, 0.1, 9)), axis=1)
    sure = {"sigma_m": 1e-6} if side == "both" else {}
    for predictor, probabilities in (
        (scalar, scalar.probability(*shown.T, np.arange(9))),
        ("theta", shown[:, 0]),
    ):
        policy = cali_ts(predictor=predictor, side=side, **sure)
        go_on, (params, state) = policy.compiled()[0], policy.start()
        for slot in range(1, 10):
            features = np.where(np.arange(9)[:, None] < slot, shown, np.nan)
            answers = [
                bool(go_on(params, state, slot, features, probabilities[slot - 1] + d)[0])
                for d in (-1e-4, 1e-4)
            ]
            assert answers == [True, False]
            assert bool(go_on(params, state, 0, np.full((9, 2), np.nan), 1.0)[0])


def test_a_scalar_predictor_reads_back_from_its_policys_name():
    inline = cali_ts(predictor=ScalarPredictor(0.1, 1 / 3, -2e-7, 0.25))
    assert parse(inline.name) == inline
    assert inline.reads == ("confidence", "entropy")
    for wrong in ("scalar/1/2", "scalar/1/2/3/x", "scalar/1/2/3/nan", "a,b", "p.json", 3):
        with pytest.raises(PolicyError, match="predictor is") as caught:
            cali_ts(predictor=wrong)
        assert "\n" not in str(caught.value)


def _known(scalar, sequences=60, rows=60, depth=4):
    """A trace whose tokens are accepted with the probability of this scalar predictor."""
    base, random = (
        synthetic.iid(0.5, sequences, rows, depth, seed=3, confidence=True),
        np.random.default_rng(4),
    )
    codes = random.integers(60, 256, (base.rows, depth, 2), dtype=np.uint8)
    draws = scalar.probability(LOG_ODDS[codes[..., 0]], ENTROPY[codes[..., 1]], np.arange(depth))
    run = np.logical_and.accumulate(random.random((base.rows, depth)) < draws, axis=1).sum(1)
    left = np.repeat(base.offset[1:], np.diff(base.offset)) - np.arange(base.rows)
    meta = replace(base.meta, features=(("confidence", "confidence"), ("entropy", "entropy")))
    return replace(base, meta=meta, feature=codes, run=np.minimum(run, left).astype(np.uint8))


def test_fit_recovers_the_true_weights():
    truth = ScalarPredictor(-0.2, 0.6, 0.3, -0.7)
    trace = _known(truth)
    fitted, reported = split_by_task(trace)
    scalar = fit_predictor(trace, fitted)
    assert sorted([*fitted, *reported]) == list(range(trace.sequences))
    assert abs(len(fitted) - len(reported)) <= 1
    feature, slot, label, sequence = examples(trace.select(reported))
    draws, true = scalar.probability(*feature.T, slot), truth.probability(*feature.T, slot)
    assert np.abs(draws - true).max() < 0.15
    assert brier(draws, label) < brier(true, label) + 0.003
    table = reliability(draws, label)
    full = table[table[:, 0] >= 200]
    assert len(full) > 3
    assert np.abs(full[:, 1] - full[:, 2]).max() < 0.12
    assert table[:, 0].sum() == len(label) == len(sequence)
    assert scalar.depth == pytest.approx(truth.depth, abs=0.3)


def test_examples_stop_at_the_first_rejection():
    trace = _known(ScalarPredictor(0, 0.5, 0, 0), 2, 6, 3)
    _, slot, label, sequence = examples(trace, ())
    expected = []
    for t in range(trace.rows):
        s = t // 6
        for i in range(3):
            if i <= trace.run[t] and t + i < (s + 1) * 6:
                expected.append((i, i < trace.run[t], s))
    assert list(zip(slot.tolist(), label.tolist(), sequence.tolist())) == expected


def test_calibration_by_hand_and_refusals():
    p, y = np.array([0.0, 0.05, 0.95, 1.0]), np.array([False, True, True, True])
    table = reliability(p, y, 2)
    np.testing.assert_allclose(table, [[2, 0.025, 0.5], [2, 0.975, 1.0]])
    assert np.isnan(reliability(p, y, 10)[4, 1:]).all()
    assert brier(p, y) == pytest.approx((0.95**2 + 0.05**2) / 4)
    for call in (
        lambda: brier(p, y[:2]),
        lambda: brier(p + 1, y),
        lambda: brier([], []),
        lambda: reliability(p, y, 0),
    ):
        with pytest.raises(ValueError):
            call()
    for trace in (
        _known(ScalarPredictor(0, 1, 0, 0), 1, 4, 2),
        _known(ScalarPredictor(50, 0, 0, 0), 4, 40, 4),
        _known(ScalarPredictor(-50, 0, 0, 0), 4, 40, 4),
    ):
        with pytest.raises(
            ValueError, match="examples are accepted tokens, expected 50 or more"
        ) as caught:
            fit_predictor(trace)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="no task has two"):
        split_by_task(synthetic.iid(0.5, 1, 4, 2))


def test_policy_reading_missing_theta_is_refused():
    trace = synthetic.iid(0.5, 1, 9, 4)
    with pytest.raises(ValueError, match="feature 'theta' is not in this trace"):
        replay(trace, make("cali_ts", trace, CostModel.from_ratio(0.1, 4)))
    assert isinstance(parse("cali_ts"), Policy)


def test_recordings_are_split_within_each_task():
    """In file order the first half would be task a alone where tasks take turns."""
    trace = synthetic.iid(0.5, 8, 4, 2)
    tasks = ("a", "b", "a", "b", "b", "a", "b", "b")
    fit, report = split_by_task(replace(trace, meta=replace(trace.meta, tasks=tasks)))
    assert fit.tolist() == [0, 1, 4, 5, 7]
    assert report.tolist() == [2, 3, 6]

"""Cali-TS as a hybrid: weight of its predictor, the search of its constants, gains, prices."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shell import run

from simspec import CostModel, load_trace, replay, synthetic
from simspec.policies import cali_ts
from simspec.policies.calibrated import DEFAULTS, theta_weight
from simspec.policy.predictor import split_by_task
from simspec.reports import hybrid_search
from simspec.reports.hybrid import CHARGED, FREE, gains, weight_table
from simspec.reports.hybrid_search import Constants, predictors, search, weights
from simspec.trace.recordings import recordings

NAME = "tiny-early_exit-coupled"
SIGMA = st.floats(1e-3, 10)


@pytest.fixture(scope="module")
def trace():
    whole = load_trace(recordings()[NAME])
    return whole.select(range(24))


@given(st.integers(0, 200), SIGMA, SIGMA, st.floats(0, 1), st.floats(0, 1))
def test_weight_is_the_precision_share_of_eq_6(n, sigma_m, sigma_s, theta, observed):
    """By precisions: theta_M has 1 / sigma_M^2 of 1 / sigma_M^2 + n / sigma_S^2."""
    own, others = 1 / sigma_m**2, n / sigma_s**2
    weight = theta_weight(float(n), sigma_m**2, sigma_s**2)
    mean = (sigma_s**2 * theta + n * sigma_m**2 * observed) / (n * sigma_m**2 + sigma_s**2)
    assert weight == pytest.approx(own / (own + others), rel=1e-9)
    assert weight * theta + (1 - weight) * observed == pytest.approx(mean, abs=1e-9)


@given(SIGMA, st.floats(1e-2, 1e2))
def test_rounds_are_what_theta_is_worth(sigma_s, rounds):
    """After that many rounds theta_M weighs a half."""
    constants = Constants("validated", rounds, sigma_s, 0.5)
    assert theta_weight(rounds, constants.sigma_m**2, sigma_s**2) == pytest.approx(0.5, abs=6e-3)


def test_weights_of_the_limits_are_the_ablations(trace):
    """Weight 1 in every round is the model alone where sigma_M is small, weight 0 sampling."""
    model = cali_ts(predictor="theta", sigma_m=1e-6, sigma_s=1e6)
    assert replay(trace, model, 5) == replay(trace, cali_ts(side="model"), 5)
    sampled = cali_ts(predictor="theta", sigma_m=1e6, sigma_s=1e-6, theta0=0.5)
    alone = cali_ts(side="sampling", sigma_s=1e-6, theta0=0.5)
    first = replay(trace, sampled, 5), replay(trace, alone, 5)
    assert first[0] != replay(trace, model, 5)
    apart = abs(first[0].computed.sum() - first[1].computed.sum())
    assert apart < 0.1 * first[1].computed.sum()  # they differ in the first round alone


def test_shipped_defaults_weigh_both_sides():
    """The former 0.8, 0.06 left the predictor 0.6% after one round."""
    assert theta_weight(1.0, 0.8**2, 0.06**2) == pytest.approx(0.0056, abs=1e-4)
    for sigma_m, sigma_s, theta0 in DEFAULTS.values():
        assert 0.1 < weights(sigma_m, sigma_s)[1] < 0.999
        assert 0 < theta0 < 1


def test_weight_table_is_the_function():
    for row, (sigma_m, sigma_s, _) in zip(weight_table().rows, DEFAULTS.values()):
        assert [float(cell) for cell in row[4:]] == pytest.approx(
            list(weights(sigma_m, sigma_s).values()), abs=5e-4
        )


def knowing(trace):
    """The trace with a theta that says which tokens will be accepted."""
    right = np.arange(trace.K) < trace.run[:, None]
    feature = np.where(right, 250, 2).astype(np.uint8)[:, :, None]
    return replace(
        trace, feature=feature, meta=replace(trace.meta, features=(("theta", "identity"),))
    )


def blind(trace):
    """The trace with a theta of random numbers: the control."""
    drawn = np.random.default_rng(0).integers(0, 256, (trace.rows, trace.K, 1), np.uint8)
    return replace(
        trace, feature=drawn, meta=replace(trace.meta, features=(("theta", "identity"),))
    )


@pytest.fixture
def coarse(monkeypatch):
    monkeypatch.setattr(hybrid_search, "ROUNDS", (0.25, 1.0, 4.0))
    monkeypatch.setattr(hybrid_search, "THETA0", (0.25, 0.5, 0.75))
    monkeypatch.setattr(hybrid_search, "READINGS", ("validated",))


@pytest.fixture(scope="module")
def switching():
    """Acceptance that changes within a sequence, which no average can follow."""
    return synthetic.switching((0.2, 0.95), (0.2, 0.2), 32, 64, 8, seed=1)


def test_a_theta_that_knows_widens_the_grid_upward(coarse, switching):
    choice = search({"": knowing(switching)}, "theta", 1)
    assert choice.chosen.rounds > 4
    assert choice.inside
    assert choice.axes["rounds"][-1] > 4
    assert choice.speedup_chosen <= choice.speedup_best


def test_a_blind_theta_is_given_little_weight(coarse, switching):
    """The control: the best is at the lower end, and the choice no higher than the middle."""
    choice = search({"": blind(switching)}, "theta", 1)
    assert choice.best.rounds == choice.axes["rounds"][0]
    assert choice.chosen.rounds <= 1
    assert choice.axes["rounds"][-1] == 4


def test_a_choice_on_the_border_is_said(coarse, switching, monkeypatch):
    monkeypatch.setattr(hybrid_search, "WIDEST", 4.0)
    assert not search({"": knowing(switching)}, "theta", 1).inside


def test_search_does_not_see_the_other_prompts(coarse, switching):
    trace = blind(switching)
    _, other = split_by_task(trace)
    run_changed, ends = trace.run.copy(), trace.offset
    for s in other:
        run_changed[ends[s] : ends[s + 1]] = 0
    changed = replace(trace, run=run_changed)
    assert search({"": trace}, "theta", 1) == search({"": changed}, "theta", 1)


def test_gain_is_seen_where_theta_knows_and_not_where_it_is_blind(switching):
    (free, *_), (control, *_) = (
        gains({"": of(switching)}, {"": 0.1}, replicates=2) for of in (knowing, blind)
    )
    assert free.over_sampling.low > 0
    assert control.over_sampling.high < 0


def test_features_are_charged_at_the_measured_price_alone(trace):
    cost = replace(CostModel.from_ratio(0.1, 16), feature=0.05, predictor=0.01)
    rows = gains({NAME: trace}, {NAME: cost}, ("theta", "fitted"), replicates=1)
    by_head = {}
    for row in rows:
        by_head.setdefault(row.predictor, {})[row.price, row.features] = row.speedup.value
    theta, fitted = by_head["theta"], by_head["fitted"]
    assert theta["measured", CHARGED] < theta["measured", FREE]
    assert theta["measured", FREE] == pytest.approx(theta["c=0.10, flat", FREE])
    lost = [1 - of["measured", CHARGED] / of["measured", FREE] for of in (theta, fitted)]
    assert lost[0] < 0.5 * lost[1]  # theta alone costs a fifth of what confidence does


def test_cost_of_theta_is_charged_by_what_is_read():
    cost = replace(CostModel.from_ratio(0.1, 4), feature=0.05, predictor=0.01)
    for reads, charge in (
        ((), 0.0), (("theta",), 0.01), (("confidence",), 0.05), (("theta", "entropy"), 0.06),
    ):  # fmt: skip
        charged = cost.reading(reads)
        assert charged.draft[2] == pytest.approx(0.2 + 2 * charge)
        assert charged.reading(reads) == charged
    unknown = replace(cost, predictor=None)
    assert unknown.reading(("theta",)).draft[1] == pytest.approx(0.15)
    assert CostModel.from_dict(cost.to_dict()) == cost
    assert "predictor" not in unknown.to_dict()
    free = replace(cost, predictor=0.0)
    assert CostModel.from_dict(free.to_dict()).reading(("theta",)).draft[1] == pytest.approx(0.1)
    with pytest.raises(ValueError, match="predictor is -1"):
        replace(cost, predictor=-1.0)


def test_command_prints_weights_and_gains(capsys):
    code, out, _ = run(
        capsys, "hybrid", NAME, "--predictor", "theta", "--json", "--replicates", "1"
    )
    assert code == 0
    data = json.loads(out)
    assert data["defaults"]["recorded"]["weight"]["1"] == pytest.approx(0.5)
    assert {row["price"] for row in data["gains"]} >= {"measured", "c=0.05, flat"}
    assert {row["features"] for row in data["gains"]} == {CHARGED, FREE}


def test_recording_without_a_predictor_is_one_line(capsys):
    code, out, err = run(capsys, "hybrid", "tiny-prompt_lookup-greedy")
    assert code == 2
    assert out == ""
    assert "no recording here has theta" in err
    assert predictors(load_trace(recordings()["tiny-prompt_lookup-greedy"])) == []

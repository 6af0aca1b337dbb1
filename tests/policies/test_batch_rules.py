"""Rules of batch policies: budgets by hand and by enumeration, the estimator, slots, lags."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_cost import TokenCost

from simspec.cost.batch import BatchCost, StepLoad, StepSeconds
from simspec.cost.table import CostTable
from simspec.policies import parse_batch
from simspec.policies.adaptive_verification import AcceptanceEstimator
from simspec.policy.batch import BatchStart, BatchStep, Lagged, admit, best_budget, survival
from simspec.replay.batches import StepPrices
from simspec.trace.quantization import LOG_ODDS


def test_budgets_by_hand():
    """Two requests, confidences 0.9 and 0.5, K = 2; a pass costs 10 and each row 3.

    Survivals 0.9, 0.81 and 0.5, 0.25. tokens(x) = 2, 2.9, 3.71, 4.21, 4.46 at 16 + 3 x seconds
    (2 rows, and nothing for drafting): .125, .1526, .1686, .1684, .1593, so the budget is 2. The
    first step weighs every token as certain: 2 + x over 16 + 3 x grows, so all 4.
    """
    p = np.array([[0.9, 0.9], [0.5, 0.5]])
    table = StepSeconds(np.zeros((3, 3)), 10.0 + 3.0 * np.arange(7), 0.0)
    rule = parse_batch("adaptive_verification").rule(BatchStart(2, 2, table))
    odds = (np.log(p / (1 - p)) + 0.2) / 0.5  # so that the untrained estimator says p
    step = BatchStep(np.arange(2), np.ones(2, bool), np.full(2, 2), 1 / (1 + np.exp(-odds)))
    assert rule.submit(step).tolist() == [2, 2]
    assert rule.submit(step._replace(new=np.zeros(2, bool))).tolist() == [2, 0]
    turned = step._replace(new=np.zeros(2, bool), confidence=step.confidence[::-1])
    assert rule.submit(turned).tolist() == [0, 2]  # the budget of before, today's order
    # With overhead 20 each row costs less of a step: .0556, .0744, .0883, .0936, .0929.
    dear = StepSeconds(np.zeros((3, 3)), table.verify, 20.0)
    rules = {
        text: parse_batch(f"adaptive_verification:lag=0{text}").rule(BatchStart(2, 2, dear))
        for text in ("", ",overhead=true")
    }
    assert [rules[text].submit(step).sum() for text in rules] == [2, 3]


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_admitted_tokens_are_the_best_prefixes(n, K, data):
    """Of all ways to verify `budget` tokens, by enumeration."""
    codes = st.lists(st.integers(100, 255), min_size=n * K, max_size=n * K)
    confidence = LOG_ODDS[np.array(data.draw(codes)).reshape(n, K)]
    computed = np.array(data.draw(st.lists(st.integers(0, K), min_size=n, max_size=n)))
    chances = survival(confidence, computed)
    for budget in range(int(computed.sum()) + 1):
        found = admit(chances, budget)
        assert found.sum() == budget
        assert (found <= computed).all()
        gains = {
            counts: sum(chances[i, :count].sum() for i, count in enumerate(counts))
            for counts in product(*(range(c + 1) for c in computed))
            if sum(counts) == budget
        }
        assert gains[tuple(found.tolist())] == pytest.approx(max(gains.values()))


def test_ties_go_to_the_smaller_position_then_to_the_earlier_request():
    chances = survival(np.array([[0.5, 1.0], [0.5, 0.5], [0.9, 0.2]]), np.full(3, 2))
    assert [admit(chances, budget).tolist() for budget in range(1, 5)] == [
        [0, 0, 1], [1, 0, 1], [1, 1, 1], [2, 1, 1]
    ]  # fmt: skip
    assert admit(chances, 99).tolist() == [2, 2, 2]


def test_the_first_best_budget():
    assert best_budget(np.array([1.0, 0.5]), 1, np.array([1.0, 2.0, 2.5])) == 0
    assert best_budget(np.array([1.0, 0.5]), 1, np.array([1.0, 1.5, 2.5])) == 1


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from((1e-3, 0.3)))
def test_an_undamped_refit_is_one_newton_step(seed, K, ridge):
    """The gradient of the penalized log-likelihood around the old coefficients, numerically."""
    random = np.random.default_rng(seed)
    estimator = AcceptanceEstimator(K, interval=1, damping=1e-12, ridge=ridge)
    feature = random.normal(0, 2, (30, K))
    predicted = estimator.predict(feature)
    verified = random.integers(0, K + 1, 30)
    accepted = np.minimum((random.random((30, K)) < 0.7).cumprod(axis=1).sum(axis=1), verified)
    seen = [(i, k) for i in range(30) for k in range(min(verified[i], accepted[i] + 1))]
    design = np.array([[feature[i, k], *np.eye(K)[k]] for i, k in seen]).reshape(-1, K + 1)
    y = np.array([float(k < accepted[i]) for i, k in seen])
    p = np.array([predicted[i, k] for i, k in seen])
    matrix = design.T @ (design * (p * (1 - p))[:, None]) + ridge * np.eye(K + 1)
    step = np.linalg.solve(matrix, design.T @ (y - p))
    estimator.step(feature, predicted, accepted, verified)
    if 0.5 + step[0] >= 0:
        assert estimator.slope == pytest.approx(0.5 + step[0])
        counted = np.bincount([k for _, k in seen], minlength=K) > 0
        np.testing.assert_allclose((estimator.bias + 0.2)[counted], step[1:][counted], atol=1e-9)
        assert (estimator.bias[~counted] == -0.2).all()
    else:
        assert estimator.slope == 0.5


def test_one_rejection_of_a_certain_token_moves_its_intercept_by_hundreds():
    """As the released kernel, executed: -853.143. With v near 0 the ridge is all of c: -1 / ridge
    of a step, damped by 300 / 350, and the depth is never verified again."""
    estimator = AcceptanceEstimator(2)
    estimator.slope, estimator.bias = 1.2, np.array([1.4, 4.0])
    feature = np.full((3, 2), 12.0)
    predicted = estimator.predict(feature)
    for i in range(100):
        estimator.step(feature, predicted, np.array([2 - (i == 50), 2, 2]), np.full(3, 2))
    assert estimator.bias[1] == pytest.approx(-853.143, abs=0.001)
    assert estimator.predict(feature)[:, 1].max() == 0.0


def test_the_estimator_finds_the_acceptance_of_its_data():
    """100 refits of calibrated drafts: predictions within 0.02 of the truth, started 0.2 off."""
    random = np.random.default_rng(5)
    estimator = AcceptanceEstimator(3)
    f = random.normal(0, 2, (4000, 3))
    truth = 1 / (1 + np.exp(-(0.9 * f + np.array([0.8, 0.3, -0.6]))))
    for start in range(0, 4000, 4):
        part = slice(start, start + 4)
        hits = (random.random((4, 3)) < truth[part]).cumprod(axis=1).sum(axis=1)
        estimator.step(f[part], estimator.predict(f[part]), hits, np.full(4, 3))
    assert abs(AcceptanceEstimator(3).predict(f) - truth).mean() > 0.1
    assert abs(estimator.predict(f) - truth).mean() < 0.03


def test_lagged_confidences_start_anew_with_a_request():
    held, slot = Lagged(2, 1, 2), np.arange(2)
    shown = []
    for i, new in enumerate(([1, 1], [0, 0], [0, 1], [0, 0], [0, 0])):
        step = BatchStep(slot, np.array(new, bool), np.ones(2, int), np.full((2, 1), 0.1 * (i + 1)))
        shown.append(held.replace(step, step.confidence)[:, 0].round(1).tolist())
    assert shown == [[1, 1], [1, 1], [0.1, 1], [0.2, 1], [0.3, 0.3]]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from((0.0, 9.0)))
def test_planned_seconds_are_those_of_the_step(batch, K, context):
    cost = replace(TokenCost(8.0, 0.25, 0.01, 0.5, draft_kv=0.001, draft_row=0.01,
                             overhead=1.0).cost(6, 3.0), feature=0.125)  # fmt: skip
    reads = ("confidence",)
    table = BatchCost(cost).by_rows(batch, K, context, reads)
    prices = StepPrices(cost, batch, None, reads)
    for drafted in range(1, batch * K + 1):
        one = [batch * K, K, drafted]
        sums = (batch * context, batch * context * K)
        load = StepLoad(
            *(np.array([v]) for v in (batch, *one)), *np.array([[0.0], *[[v] for v in sums]])
        )
        spent, _ = prices.seconds(load)
        assert table.of(batch, K, batch + drafted) == pytest.approx(spent[0])
    assert (np.diff(table.verify) >= 0).all()
    measured = CostTable((batch,), (0,), ((cost.truncate(4),),)) if batch > 1 else None
    if measured is not None:
        assert len(BatchCost(cost, batch).by_rows(batch, 4, 0.0).verify) == batch * 5 + 1

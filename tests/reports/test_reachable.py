"""The stopping rule fitted in hindsight: its definition, its bounds, and what signals are worth."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import costs, traces

from simspec import CostModel, replay, synthetic
from simspec.policies.fixed import fixed
from simspec.policies.oracles import oracle
from simspec.reports import reachable as module
from simspec.reports.reachable import cell, reachable, running_acceptance

COST = CostModel.from_ratio(0.2, 6)


def seconds(trace, policy, cost):
    return cost.reading(policy.reads).seconds(replay(trace, policy, 0, cost)).sum()


def informative(trace):
    """The trace with a confidence that says which tokens will be accepted."""
    right = np.arange(trace.K) < trace.run[:, None]
    feature = np.where(right, 250, 2).astype(np.uint8)[:, :, None]
    return replace(
        trace, feature=feature, meta=replace(trace.meta, features=(("confidence", "identity"),))
    )


@given(traces(), st.data())
def test_no_rule_beats_the_oracle_nor_loses_to_a_fixed_length(trace, data):
    cost = data.draw(costs(trace.K))
    found = reachable(trace, cost)
    drawn = module.drawn_trace(trace, 0)
    plain = trace.rows * cost.baseline
    best = max(plain / seconds(drawn, fixed(k), cost) for k in range(trace.K + 1))
    bound = plain / seconds(drawn, oracle.resolve(drawn, cost), cost)
    assert found.hindsight >= best * (1 - 1e-9)
    assert found.hindsight <= bound * (1 + 1e-9)
    assert found.crossed <= bound * (1 + 1e-9)


def test_a_confidence_that_knows_is_worth_a_part_of_the_gap_and_no_signal_nothing():
    """It speaks after a token is computed: the first wrong one of each round is paid for."""
    blind = synthetic.iid(0.6, 20, 50, 6)
    free = seconds(blind, oracle.resolve(blind, COST), COST)
    bound = blind.rows * COST.baseline / free
    knowing, guessing = reachable(informative(blind), COST), reachable(blind, COST)
    gap = bound - guessing.hindsight
    assert knowing.crossed > guessing.hindsight + 0.2 * gap
    assert guessing.crossed < guessing.hindsight + 0.1 * gap


def test_fit_is_backward_induction_by_its_definition():
    trace = informative(synthetic.iid(0.5, 6, 30, 4, seed=3))
    cost = CostModel([0, 0.3, 0.5, 0.9, 1.0], [1, 1.1, 1.1, 1.4, 1.5], [0, 0.2], 0.1, 1.0)
    rounds = replay(trace, fixed(2), 0, cost)
    rate = 0.8
    confidence = module._confidences(trace)
    history = running_acceptance(rounds.offset, rounds.drafted, rounds.accepted)
    count = trace.K * module.HISTORY * module.PRODUCT * module.LAST
    go, later = np.zeros(count, bool), [0.0] * len(rounds)
    ends = np.repeat(trace.offset[1:], np.diff(trace.offset))
    for j in (3, 2, 1, 0):
        price = cost.draft[j + 1] - cost.draft[j] + cost.verify[j + 1] - cost.verify[j]
        gains, places = [], []
        for r, row in enumerate(rounds.row):
            product = float(np.prod(confidence[row, :j]))
            last = confidence[row, j - 1] if j else 1.0
            places.append(cell(j, history[r], product, last))
            gains.append(float(trace.run[row] > j) - rate * price + later[r])
        possible = [min(trace.depth[row], ends[row] - row) > j for row in rounds.row]
        for place in set(places):
            of = [g for g, p, ok in zip(gains, places, possible) if p == place and ok]
            go[place] = sum(of) > 0
        later = [g if ok and go[p] else 0.0 for g, p, ok in zip(gains, places, possible)]
    assert go.any()
    assert not go.all()
    visited = module._visited(trace, rounds, confidence)
    assert np.array_equal(module._fit(trace, cost, [visited], rate), go)


def test_running_acceptance_by_hand():
    offset, drafted = np.array([0, 3, 4]), np.array([2, 0, 4, 1])
    accepted = np.array([2, 0, 1, 1])
    found = running_acceptance(offset, drafted, accepted)
    first = 0.5 + module.WEIGHT * (1 - 0.5)
    second = first + module.DRIFT * (0.5 - first)
    assert found.tolist() == pytest.approx([0.5, first, second, 0.5])

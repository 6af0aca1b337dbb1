"""Bandits over lengths: against their slow twins, by hand, and what they draw."""

import math
from functools import partial

import numpy as np
import pytest
import rule_twins as twins
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_twins import LENGTHS, LONG, SCOPE, SEED, drafts, learn, same, text
from strategies import costs

from simspec import CostModel, synthetic
from simspec.policies import exp3, ucb
from simspec.policies.bandits import drawn_arm


@settings(max_examples=60)
@given(LONG, LENGTHS, st.booleans(), st.sampled_from([0.0, 0.1, 2.0]), SCOPE, costs())
def test_ucb_equals_its_twin(trace, lengths, released, exploration, scope, cost):
    arms = [k for k in lengths if k <= trace.K]
    if not arms:
        return
    policy = ucb("released" if released else "ucb1", text(lengths), exploration, scope)(trace, cost)
    same(trace, policy, partial(twins.Ucb, released, arms, exploration, cost), cost)


def test_ucb_by_hand():
    """Arms 1 and 2 at c = 0.5: a round takes 1.5 and 2 s, the best rate is 3 / 2. Rewards 2/1.5/1.5
    and 1/2/1.5; then 0.889 + sqrt(ln 2) against 0.333 + sqrt(ln 2): arm 1. A reward of 0.444 there:
    0.667 + sqrt(ln 3 / 2) = 1.408 against 0.333 + sqrt(ln 3) = 1.381, arm 1; again 0.444: 0.593 +
    sqrt(ln 4 / 3) = 1.273 against 0.333 + sqrt(ln 4) = 1.511: arm 2.
    """
    trace, cost = synthetic.iid(0.5, 1, 8, 2), CostModel.from_ratio(0.5, 2)
    policy = ucb(arms="1/2", exploration=1.0)(trace, cost)
    state = policy.start()[1]
    chosen = []
    for accepted in (1, 0, 0, 0, 0):
        more, _ = policy.compiled()
        chosen.append(1 + int(more(np.array(policy.params), state, 0, np.zeros((2, 0)), 0.5)[0]))
        length = int(policy.params[3 + int(state[0])])
        chosen[-1] = length
        state = learn(policy, state, accepted, length, cost=1 + 0.5 * length, K=2)
    assert chosen == [1, 2, 1, 1, 2]


def test_ucb_as_released_is_greedy_after_the_first_pulls():
    """1, 2, 3, 4, 1, 2, 3, then the arm of the best mean for good, here the one that was lucky."""
    trace, cost = synthetic.iid(0.5, 1, 8, 4), CostModel.from_ratio(0.0, 4)
    policy = ucb("released")(trace, cost)
    assert drafts(policy, [0, 2, 0, 0, 0, 2, 0] + [1] * 30) == [1, 2, 3, 4, 1, 2, 3] + [2] * 31
    assert len(set(drafts(ucb()(trace, cost), [0, 2, 0, 0, 0, 2, 0] + [1] * 30)[8:])) > 1


@settings(max_examples=60)
@given(LONG, LENGTHS, st.sampled_from([0.0, 0.5, 1.0, 20.0]), SCOPE, costs(), SEED)
def test_exp3_equals_its_twin(trace, lengths, rate, scope, cost, seed):
    arms = [k for k in lengths if k <= trace.K]
    if not arms:
        return
    policy = exp3(text(lengths), rate, scope)(trace, cost)
    same(trace, policy, partial(twins.Exp3, arms, rate, cost), cost, seed)


@settings(max_examples=40)
@given(st.lists(st.floats(0, 50), min_size=4, max_size=4), st.integers(0, 200), st.floats(0, 5))
def test_exp3_draws_its_distribution(losses, t, rate):
    """Shares of 512 even draws against the definition: within one step an arm."""
    trace, cost = synthetic.iid(0.5, 1, 8, 4), CostModel.from_ratio(0.2, 4)
    params = np.array(exp3(rate=rate)(trace, cost).params)
    state = np.array([0.0, 1.0, t, *losses])
    drawn = [drawn_arm(params, state, (i + 0.5) / 512) for i in range(512)]
    shares = np.bincount([arm for arm, _ in drawn], minlength=4) / 512
    twin = twins.Exp3((1, 2, 3, 4), rate, cost)
    twin.losses, twin.t = losses, t + 1
    expected = twin.probabilities()
    assert np.abs(shares - expected).max() <= 1 / 512 + 1e-12
    assert all(chance == pytest.approx(expected[arm], rel=1e-9) for arm, chance in drawn)
    assert {arm for arm, _ in drawn} <= {i for i in range(4) if expected[i] > 0}


def test_exp3_by_hand():
    """Two arms, t = 1: 1/2 each. A loss of 0.25 on arm 0 counts 0.5; eta = sqrt(ln 2 / 4) in round
    2: P(0) = 1 / (1 + exp(0.5 eta)) = 0.4482.
    """
    trace, cost = synthetic.iid(0.5, 1, 8, 1), CostModel([0, 1], [1, 1], [0.0], 0.0, 1.0)
    policy = exp3("0/1")(trace, cost)  # the best rate is 1, of either arm
    params, state = policy.start()
    assert drawn_arm(params, state, 0.499)[0] == 0
    assert drawn_arm(params, state, 0.501)[0] == 1
    policy.compiled()[0](params, state, 0, np.zeros((1, 0)), 0.2)
    state = learn(policy, state, 0, 0, cost=4 / 3, K=1)
    assert state.tolist()[2:] == pytest.approx([1, 0.5, 0])
    assert drawn_arm(params, state, 0.3) == (0, pytest.approx(0.44815, abs=1e-5))
    eta = math.sqrt(math.log(2) / 4)
    assert drawn_arm(params, state, 0.3)[1] == pytest.approx(1 / (1 + math.exp(0.5 * eta)))

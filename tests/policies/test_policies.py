"""The built-ins against their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import traces

from simspec import CostModel, DeferredPolicy, policies, replay, synthetic
from simspec.policies import (
    beta_ts,
    cali_ts,
    confidence,
    cost_ts,
    entropy,
    fixed,
    hf_heuristic,
    product,
)
from simspec.policies.thompson import READINGS, planned
from simspec.tree.tree import MAX_NODES

COST = CostModel.from_ratio(0.1, 16)


def progress(policy, state, computed, drafted, accepted):
    """The state after one round, from the policy's own function."""
    state = np.array(state, dtype=float)
    policy.compiled()[1](
        np.array(policy.params), state, computed, drafted, accepted, np.full((16, 0), np.nan), 0.0
    )
    return state.tolist()


def ask(policy, state, slot, u=math.nan, features=None):
    shown = (
        np.full((16, len(policy.reads)), np.nan)
        if features is None
        else np.array(features, dtype=float)
    )
    return policy.compiled()[0](
        np.array(policy.params), np.array(state, dtype=float), slot, shown, u
    )


ROUNDS = ((1, 0), (1, 1), (3, 0), (3, 2), (3, 3), (0, 0))
# (r, n) of these (k, a): the digest's readings of Alg. 2, worked out by hand.
UPDATES = {
    "acceptance": ((0, 1), (1, 1), (0, 1), (2, 3), (3, 3), (0, 0)),
    "censored": ((0, 0), (0, 0), (0, 0), (1, 2), (2, 2), (0, 0)),
    "printed": ((0, 1), (0, 1), (0, 1), (1, 3), (2, 3), (0, 0)),
    "printed_with_correction": ((0, 1), (0, 1), (0, 2), (2, 3), (2, 3), (0, 0)),
}


@pytest.mark.parametrize("reading", READINGS)
def test_beta_updates_by_hand(reading):
    for (k, a), (r, n) in zip(ROUNDS, UPDATES[reading], strict=True):
        assert progress(beta_ts(reading), (2.0, 3.0), k, k, a) == [2.0 + r, 3.0 + n - r], (k, a)


def _drift(reading, go_on, alpha, K=40):
    """E[r] - s E[n] of one round, by enumeration: which way the update moves a posterior mean s
    = go_on.
    """
    total = 0.0
    for k in range(1, K + 1):
        draws = go_on ** (k - 1) * (1 - go_on if k < K else 1)
        for a in range(k + 1):
            after = progress(beta_ts(reading), (1.0, 1.0), k, k, a)
            r, failures = after[0] - 1, after[1] - 1
            total += draws * alpha**a * (1 - alpha if a < k else 1) * (r - go_on * (r + failures))
    return total


def test_drift_of_the_four_readings():
    """Acceptance: `acceptance` and `censored` settle at s = alpha; `printed` sinks from anywhere,
    and where every token is accepted it never learns: each s is a fixed point, for it counts its
    own stops. `test_posterior` enumerates the draft lengths that follow, and replays them.
    """
    for reading in ("acceptance", "censored"):
        assert _drift(reading, 0.7, 0.8) > 0.01 > -0.01 > _drift(reading, 0.9, 0.8)
        assert _drift(reading, 0.8, 0.8) == pytest.approx(0, abs=1e-9)
    assert all(_drift("printed", go_on, 0.8) < 0 for go_on in (0.05, 0.2, 0.5, 0.8))
    assert all(abs(_drift("printed", go_on, 1.0, 200)) < 1e-9 for go_on in (0.2, 0.5, 0.7))


def test_confidence_by_hand():
    features = [[0.9], [0.4], [0.5]] + [[np.nan]] * 13
    for inclusive in (True, False):
        policy = confidence(0.5, inclusive)
        answers = [ask(policy, (), slot, features=features) for slot in range(4)]
        assert [go for go, _ in answers] == [True, True, False, True]
        assert answers[2][1] is inclusive or bool(answers[2][1]) == inclusive


@settings(deadline=None, max_examples=40)
@given(traces(optional=False), st.floats(0, 1))
def test_exclusive_costs_the_same_and_submits_no_more(trace, threshold):
    inclusive, exclusive = (replay(trace, confidence(threshold, flag)) for flag in (True, False))
    assert (inclusive.computed == inclusive.drafted).all()
    cost = dict(zip(inclusive.row.tolist(), inclusive.computed.tolist()))
    for row, computed, drafted in zip(
        exclusive.row.tolist(), exclusive.computed.tolist(), exclusive.drafted.tolist()
    ):
        assert cost.get(row, computed) == computed
        assert computed - 1 <= drafted <= computed
    assert replay(trace, confidence(0.0)) == replay(trace, fixed(trace.K))


def test_hf_heuristic_by_hand():
    policy = hf_heuristic(5)
    assert progress(policy, (5,), 5, 5, 5) == [7.0]
    assert progress(policy, (5,), 5, 5, 4) == [4.0]
    assert progress(policy, (1,), 1, 1, 0) == [1.0]
    # cut short from outside, all that were submitted accepted: as released
    assert progress(policy, (5,), 2, 2, 2) == [7.0]
    assert progress(policy, (5,), 0, 0, 0) == [7.0]
    assert ask(policy, (2,), 1) == (True, True)
    assert ask(policy, (2,), 2)[0] in (False, np.False_)
    assert policy.scope == "stream"
    assert hf_heuristic(5, True).scope == "sequence"


SHOWN = 0.5


def goes_on(policy, value, slot=1):
    """Whether the policy drafts on behind a token that shows `value`."""
    draft_more, (params, state) = policy.compiled()[0], policy.start()
    shown = np.full((4, 1), value)
    return bool(draft_more(params, state, slot, shown, np.nan)[0])


@pytest.mark.parametrize(
    "policy, beyond",
    [(confidence(SHOWN), 0.25), (entropy(SHOWN), 0.75), (product(SHOWN, shortest=1), 0.25)],
)
def test_a_token_at_the_threshold_is_drafted_behind(policy, beyond):
    assert goes_on(policy, SHOWN)
    assert not goes_on(policy, beyond)


@pytest.mark.parametrize(
    "predictor, defaults",
    [("theta", (0.25, 0.25, 0.5)), ("scalar/0.1/0.7/-0.2/0.1", (0.00781, 0.0625, 0.5))],
)
def test_calibrated_sampling_has_the_defaults_of_its_predictor(predictor, defaults):
    """sigma_M, sigma_S and theta_0 as `cali_ts` states them."""
    sigma_m, sigma_s, theta0 = defaults
    assert cali_ts(predictor=predictor).params[1:4] == (sigma_m**2, sigma_s**2, theta0)


@pytest.mark.parametrize("alpha0, beta0, length", [(9.0, 1.0, 4), (1.0, 9.0, 0)])
def test_prior_successes_lengthen_drafts(alpha0, beta0, length):
    """With a mean acceptance of 0.9 four tokens pay at a ratio of 0.2, with 0.1 none."""
    trace, cost = synthetic.iid(0.5, 1, 10, 4), CostModel.from_ratio(0.2, 4)
    policy = cost_ts(alpha0=alpha0, beta0=beta0, greedy=True)(trace, cost)
    params, state = policy.start()
    assert planned(params, state, 0.5) == length


PRICES = CostModel.from_ratio(0.1, 4, MAX_NODES)
NODES = {
    **dict.fromkeys(("fixed:2", "beta_ts", "oracle", "cost_ts", "goodput", "ucb", "exp3"), 0),
    **dict.fromkeys(("optimal_tree:8,medusa", "optimal_tree:8,full", "tree_oracle"), MAX_NODES),
    "static:2x2": 8, "dynamic_tree:40": 40, "cape": 32,
}  # fmt: skip


def test_nodes_that_costs_must_price_are_known_before_a_policy_is_made():
    assert {text: policies.parse(text).submitted(8) for text in NODES} == NODES


def test_new_policy_is_one_dictionary_entry(monkeypatch):
    mine = DeferredPolicy("mine", lambda trace, cost: policies.fixed(trace.K))
    monkeypatch.setitem(policies.BUILTIN, "mine", mine)
    assert policies.parse("mine") is mine
    with pytest.raises(policies.PolicyError, match="mine takes no arguments"):
        policies.parse("mine:3")


def test_clairvoyant_policies_are_named():
    assert set(policies.CLAIRVOYANT) == {"oracle", "greedy_oracle", "tree_oracle"}

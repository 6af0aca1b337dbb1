"""The built-ins against their definitions."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_twins import drafts, goes_on, learn
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
        after = learn(beta_ts(reading), (2.0, 3.0), a, k)
        assert after.tolist() == [2.0 + r, 3.0 + n - r], (k, a)


def test_confidence_by_hand():
    for inclusive in (True, False):
        policy, shown = confidence(0.5, inclusive), (math.nan, 0.9, 0.4, 0.5)
        answers = [goes_on(policy, value, slot) for slot, value in enumerate(shown)]
        assert [go for go, _ in answers] == [True, True, False, True]
        assert answers[2][1] == inclusive


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
    """The last two: cut short from outside, all that were submitted accepted, as released."""
    for before, drafted, accepted, after in (
        (5, 5, 5, 7), (5, 5, 4, 4), (1, 1, 0, 1), (5, 2, 2, 7), (5, 0, 0, 7)
    ):  # fmt: skip
        assert learn(hf_heuristic(5), (before,), accepted, drafted) == [after]
    assert drafts(hf_heuristic(2), []) == [2]
    assert [hf_heuristic(5, transient).scope for transient in (False, True)] == [
        "stream",
        "sequence",
    ]


SHOWN = 0.5


@pytest.mark.parametrize(
    "policy, beyond",
    [(confidence(SHOWN), 0.25), (entropy(SHOWN), 0.75), (product(SHOWN, shortest=1), 0.25)],
)
def test_a_token_at_the_threshold_is_drafted_behind(policy, beyond):
    assert goes_on(policy, SHOWN)[0]
    assert not goes_on(policy, beyond)[0]


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

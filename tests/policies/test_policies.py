"""The built-ins against their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import nosy, traces

from simspec import CostModel, replay, synthetic
from simspec.policies import beta_ts, confidence, fixed, hf_heuristic
from simspec.policies.thompson import READINGS

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


# (k, a) -> (r, n): the digest's readings of Alg. 2, worked out by hand.
UPDATES = {
    "acceptance": {
        (1, 0): (0, 1),
        (1, 1): (1, 1),
        (3, 0): (0, 1),
        (3, 2): (2, 3),
        (3, 3): (3, 3),
        (0, 0): (0, 0),
    },
    "censored": {
        (1, 0): (0, 0),
        (1, 1): (0, 0),
        (3, 0): (0, 0),
        (3, 2): (1, 2),
        (3, 3): (2, 2),
        (0, 0): (0, 0),
    },
    "printed": {
        (1, 0): (0, 1),
        (1, 1): (0, 1),
        (3, 0): (0, 1),
        (3, 2): (1, 3),
        (3, 3): (2, 3),
        (0, 0): (0, 0),
    },
    "printed_with_correction": {
        (1, 0): (0, 1),
        (1, 1): (0, 1),
        (3, 0): (0, 2),
        (3, 2): (2, 3),
        (3, 3): (2, 3),
        (0, 0): (0, 0),
    },
}


@pytest.mark.parametrize("reading", READINGS)
def test_beta_updates_by_hand(reading):
    for (k, a), (r, n) in UPDATES[reading].items():
        assert progress(beta_ts(reading), (2.0, 3.0), k, k, a) == [2.0 + r, 3.0 + n - r], (k, a)


@settings(deadline=None)
@given(
    st.sampled_from(READINGS),
    st.integers(0, 16),
    st.integers(0, 16),
    st.floats(0.1, 9),
    st.floats(0.1, 9),
)
def test_beta_parameters_stay_positive_and_never_fall(reading, k, a, alpha, beta):
    after = progress(beta_ts(reading), (alpha, beta), k, k, min(a, k))
    assert after[0] >= alpha
    assert after[1] >= beta


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 40), st.integers(1, 40))
def test_thompson_draw_is_bernoulli_of_the_posterior_mean(a, b):
    """P(chi = 1) = integral of theta Beta(theta; a, b) = a / (a + b), by an exact quadrature,
    for the rule that is run.
    """
    nodes, weights = np.polynomial.legendre.leggauss(60)
    theta, weights = (nodes + 1) / 2, weights / 2
    density = theta ** (a - 1) * (1 - theta) ** (b - 1)
    draws = (weights * theta * density).sum() / (weights * density).sum()
    assert draws == pytest.approx(a / (a + b), abs=1e-12)
    grid = (np.arange(1024) + 0.5) / 1024
    goes = np.mean([ask(beta_ts(), (a, b), 1, u)[0] for u in grid])
    assert abs(goes - draws) <= 1 / 1024
    assert ask(beta_ts(), (a, b), 0, 1 - 1e-12) == (True, True)


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
    own stops.
    """
    for reading in ("acceptance", "censored"):
        assert _drift(reading, 0.7, 0.8) > 0.01 > -0.01 > _drift(reading, 0.9, 0.8)
        assert _drift(reading, 0.8, 0.8) == pytest.approx(0, abs=1e-9)
    assert all(_drift("printed", go_on, 0.8) < 0 for go_on in (0.05, 0.2, 0.5, 0.8))
    assert all(abs(_drift("printed", go_on, 1.0, 200)) < 1e-9 for go_on in (0.2, 0.5, 0.7))
    trace = synthetic.iid(0.8, 1, 12_000, 16)
    mean = {
        reading: replay(trace, beta_ts(reading), 1).drafted[1000:].mean()
        for reading in ("printed", "acceptance")
    }
    assert mean["printed"] < 1.3  # the digest's enumeration: 1.2
    assert mean["acceptance"] == pytest.approx((1 - 0.8**16) / (1 - 0.8), rel=0.1)


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
    assert progress(policy, (5,), 2, 2, 2) == [
        7.0
    ]  # cut short from outside, all that were submitted accepted: as released
    assert progress(policy, (5,), 0, 0, 0) == [7.0]
    assert ask(policy, (2,), 1) == (True, True)
    assert ask(policy, (2,), 2)[0] in (False, np.False_)
    assert policy.scope == "stream"
    assert hf_heuristic(5, True).scope == "sequence"


def test_user_policy_replays():
    trace = synthetic.iid(0.7, 2, 30, 5, confidence=True)
    assert len(replay(trace, nosy(), 1, COST)) > 0

"""The built-ins against their definitions."""

import math

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import EXAM, costs, nosy, traces

from simspec import CostModel, PolicyError, policies, replay, synthetic
from simspec.policies import (
    BUILTIN,
    beta_ts,
    cali_ts,
    confidence,
    fixed,
    greedy_oracle,
    hf_heuristic,
    make,
    oracle,
    parse,
)
from simspec.policies.thompson import READINGS

COST = CostModel.from_ratio(0.1, 16)
# What strategies.planned plans for.
TRACE, PRICES = (
    synthetic.iid(0.5, 1, 4, 6),
    CostModel(0.125 * np.arange(7), np.ones(7), [0, 0.25], 0.0, 1.0),
)


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
def test_a_fresh_theta_is_a_bernoulli_of_the_posterior_mean(a, b):
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


def test_where_the_readings_drift():
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
def test_exclusive_pays_what_inclusive_pays_in_a_round_and_submits_no_more(trace, threshold):
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


@settings(deadline=None, max_examples=60)
@given(traces(max_K=3, max_rows=5, max_sequences=2, optional=False), costs(K=3))
def test_oracle_equals_brute_force_over_every_schedule(trace, cost):
    rounds = replay(trace, oracle(trace, cost), cost=cost)
    seconds = cost.seconds(rounds)
    for s in range(trace.sequences):
        found = seconds[rounds.offset[s] : rounds.offset[s + 1]].sum()
        assert found == pytest.approx(naive.best_time(trace, cost, s), abs=1e-12)


@pytest.mark.parametrize("policy", EXAM, ids=lambda policy: policy.name)
@settings(deadline=None, max_examples=25)
@given(traces(optional=False), costs(), st.integers(0, 2**32))
def test_no_policy_beats_the_oracle(policy, trace, cost, seed):
    best = cost.seconds(replay(trace, oracle(trace, cost), cost=cost)).sum()
    assert cost.seconds(replay(trace, policy, seed, cost)).sum() >= best - 1e-9


def test_oracle_drops_a_token_where_owing_a_row_is_dear():
    """One token is always accepted, never two; owing a row costs 5, a draft step 1, verifying a
    second token 10 more.
    """
    trace = synthetic.decaying([1.0, 0.0], 1, 6)
    cost = CostModel([0, 1, 2], [10, 10, 20], [0, 5], 0, 10)
    rounds = replay(trace, oracle(trace, cost), cost=cost)
    assert (rounds.computed > rounds.drafted).any()
    assert cost.seconds(rounds).sum() == pytest.approx(naive.best_time(trace, cost, 0))


def test_oracle_breaks_ties_towards_the_shorter_draft():
    free = CostModel.from_ratio(0.0, 4)
    never, always = synthetic.iid(0.0, 2, 9, 4), synthetic.iid(1.0, 2, 10, 4)
    assert (replay(never, oracle(never, free), cost=free).computed == 0).all()
    assert (replay(always, oracle(always, free), cost=free).drafted == 4).all()


def test_oracle_needs_a_cost_model_that_reaches():
    with pytest.raises(PolicyError, match="prices drafts up to 2, the trace reaches 4"):
        oracle(synthetic.iid(0.5, 1, 4, 4), CostModel.from_ratio(0.1, 2))


@pytest.mark.parametrize(
    "policy", [p for p in EXAM if not p.name.startswith("nosy")], ids=lambda policy: policy.name
)
def test_a_name_reads_back_as_its_policy(policy):
    assert make(policy.name, TRACE, PRICES) == policy


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_bare_and_made_names_agree(name):
    text = {"fixed": "fixed:3", "confidence": "confidence:0.5"}.get(name, name)
    policy = make(text, TRACE, PRICES)
    again = make(policy.name, TRACE, PRICES)
    assert again == policy
    assert make(policy, TRACE, PRICES) is policy
    assert policy.name.split(":")[0] == name
    assert "\n" not in policy.name


def test_parse():
    assert parse("fixed:3") == fixed(3)
    assert parse("beta_ts") == beta_ts()
    assert parse("beta_ts:censored,alpha0=2.5") == beta_ts("censored", 2.5)
    assert (
        parse("confidence:0.4,false")
        == parse("confidence:0.4,inclusive=false")
        == confidence(0.4, False)
    )
    assert parse("hf_heuristic:start=20,transient=true") == hf_heuristic(20, True)
    assert parse("cali_ts:validated,sigma_m=0.2") == cali_ts("validated", sigma_m=0.2)
    assert parse("oracle") is oracle
    assert set(BUILTIN) >= {"fixed", "beta_ts", "confidence", "hf_heuristic", "oracle"}
    assert policies.parse is parse


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fixd:3",
        "fixed",
        "fixed:",
        "fixed:-1",
        "fixed:x",
        "fixed:2.5",
        "fixed:1,2",
        "fixed:k=1,j=2",
        "beta_ts:posterior",
        "beta_ts:alpha0=0",
        "beta_ts:alpha0=x",
        "beta_ts:scope=prompt",
        "confidence",
        "confidence:2",
        "confidence:x",
        "confidence:0.5,inclusive=3",
        "confidence:true",
        "entropy:-1",
        "product:2",
        "product:0.3,predictor=entropy",
        "product:0.3,shortest=0",
        "draft_verify:2",
        "adaedl:g=0",
        "adaedl:g=x",
        "cali_ts:posterior",
        "cali_ts:sigma_m=0",
        "cali_ts:sigma_s=x",
        "cali_ts:theta0=1.5",
        "cali_ts:predictor=scalar/1/2",
        "cali_ts:predictor=scalar/1/2/3/x",
        "cali_ts:predictor=scalar/1/2/3/inf",
        "cali_ts:predictor=3",
        "cali_ts:predictor=absent.json",
        "cali_ts:predictor=a-b",
        "model_only:a b",
        "model_only:none",
        "sampling_only:theta0=-1",
        "sampling_only:predictor=theta",
        "cost_ts:mean",
        "cost_ts:alpha0=0",
        "cost_ts:decay=0",
        "cost_ts:decay=2",
        "cost_ts:greedy=3",
        "cost_ts:scope=prompt",
        "cost_ts:K=-1",
        "cost_ts:K=x",
        "greedy_oracle:3",
        "hf_heuristic:0",
        "hf_heuristic:true",
        "hf_heuristic:2,transient=3",
        "oracle:3",
    ],
)
def test_bad_texts_are_one_line(text):
    with pytest.raises(PolicyError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text, near",
    [
        ("fixd:3", "fixed"),
        ("beta-ts", "beta_ts"),
        ("oracel", "oracle"),
        ("confidense:0", "confidence"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(text, near):
    with pytest.raises(PolicyError, match=f"did you mean {near}\\?"):
        parse(text)
    with pytest.raises(PolicyError, match="named 'qqq': expected one of fixed, "):
        parse("qqq")


@pytest.mark.parametrize("thing", [3, None, lambda trace, cost: "fixed:3"])
def test_make_refuses_what_is_no_policy(thing):
    with pytest.raises(PolicyError, match="is no policy: expected a Policy, text"):
        make(thing, TRACE, PRICES)
    assert make(oracle, TRACE, PRICES).name == make("oracle", TRACE, PRICES).name == "oracle"


@settings(deadline=None, max_examples=60)
@given(traces(optional=False), costs(), st.booleans())
def test_greedy_oracle_takes_the_best_rate_of_each_round_and_never_beats_the_oracle(
    trace, cost, first_only
):
    policy = greedy_oracle(trace, cost)
    rounds = replay(trace, policy, cost=cost)
    for s in range(trace.sequences):
        backlog, clock = 0, naive.Clock(cost)
        for r in range(rounds.offset[s], rounds.offset[s + 1]):
            row, k = int(rounds.row[r]), int(rounds.computed[r])
            assert k == naive.best_rate(trace, cost, s, row, backlog)
            clock.price(k, k, int(rounds.accepted[r]))
            backlog = clock.unread
    best = cost.seconds(replay(trace, oracle(trace, cost), cost=cost)).sum()
    assert cost.seconds(rounds).sum() >= best - 1e-9


def test_the_greedy_oracle_is_no_upper_bound():
    """A better rate now can end the round where the next one is worth less: the dynamic program
    waits.
    """
    worse = []
    for seed in range(20):
        trace, cost = synthetic.iid(0.6, 5, 40, 4, seed), CostModel.from_ratio(0.3, 4)
        times = [
            cost.seconds(replay(trace, made(trace, cost), cost=cost)).sum()
            for made in (greedy_oracle, oracle)
        ]
        worse.append(times[0] / times[1] - 1)
    assert min(worse) >= -1e-12
    assert max(worse) > 0.001


def test_a_user_policy_works_where_a_built_in_does():
    trace = synthetic.iid(0.7, 2, 30, 5, confidence=True)
    assert len(replay(trace, nosy(), 1, COST)) > 0

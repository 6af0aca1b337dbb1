"""Cost-aware policies: Thompson sampling, where k = 0 is no trap, and bandits over lengths."""

import math
from functools import partial

import numpy as np
import pytest
import rule_twins as twins
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_twins import LENGTHS, LONG, SCOPE, SEED, drafts, same, text
from scipy import stats
from strategies import costs, joined

from simspec import CostModel, replay, synthetic
from simspec.numerics.rng import beta_draw
from simspec.policies import cost_ts, exp3, fixed, make, ucb
from simspec.policies.bandits import drawn_arm
from simspec.policies.thompson import planned

COUNTS = st.lists(st.integers(0, 40), min_size=12, max_size=12)
OUTCOMES = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda x: (x[0], min(x))), max_size=20
)
TRACE = synthetic.iid(0.5, 1, 8, 6)


def _best(alphas, cost, backlog):
    """The plan by definition: (best rate, shortest k that has it)."""
    rates = []
    for k in range(len(alphas) + 1):
        tokens = 1 + sum(math.prod(alphas[: j + 1]) for j in range(k))
        seconds = (
            cost.overhead
            + cost.draft[k]
            + cost.verify[k]
            + (cost.catch_up[min(backlog, len(cost.catch_up) - 1)] if k else 0)
        )
        rates.append(tokens / seconds)
    best = max(rates)
    return rates, next(k for k, rate in enumerate(rates) if rate >= best * (1 - 1e-11))


@settings(deadline=None, max_examples=150)
@given(costs(), st.floats(1e-6, 1 - 1e-6), COUNTS, st.integers(0, 5), st.booleans(), st.booleans())
def test_draft_length_maximises_the_sampled_rate(cost, u, counts, backlog, by_depth, greedy):
    policy = cost_ts("depth" if by_depth else "shared", greedy=greedy)(TRACE, cost)
    params, state = policy.start()
    state[1], state[2:] = backlog, counts[: len(state) - 2]
    alphas = []
    for j in range(6):
        a, b = state[2 + 2 * j * by_depth : 4 + 2 * j * by_depth] + 1
        alphas.append(a / (a + b) if greedy else beta_draw(u, j if by_depth else 0, a, b))
    rates, expected = _best(alphas, cost, backlog)
    k = planned(params, state, u)
    assert k == expected or rates[k] == pytest.approx(rates[expected], rel=1e-9)
    go_on = policy.compiled()[0]
    answers = [
        bool(go_on(params, state, slot, np.zeros((6, 0)), u if slot == 0 else 1 - u)[0])
        for slot in range(7)
    ]
    assert answers == [slot < k for slot in range(7)]  # later draws are not looked at


@settings(deadline=None, max_examples=100)
@given(OUTCOMES, st.booleans(), st.sampled_from([1.0, 0.5]))
def test_counts_respect_censoring(outcomes, by_depth, decay):
    """Counts by walking the tokens: depth j is verified iff all before it were accepted; the
    backlog as the cost model has it.
    """
    policy = cost_ts("depth" if by_depth else "shared", decay=decay)(
        TRACE, CostModel.from_ratio(0.1, 6)
    )
    params, state = policy.start()
    won, lost, backlog = np.zeros(6), np.zeros(6), 0
    for k, a in outcomes:
        policy.compiled()[1](params, state, k, k, a, np.zeros((6, 0)), 0.0)
        won, lost = won * decay, lost * decay
        for j in range(k):
            if j > a:
                break
            (won if j < a else lost)[j] += 1
        backlog = backlog + 1 if k == 0 else int(a == k)
    assert state[1] == backlog
    if by_depth:
        np.testing.assert_allclose(state[2:], np.stack((won, lost), 1).ravel(), atol=1e-9)
    else:
        np.testing.assert_allclose(state[2:], (won.sum(), lost.sum()), atol=1e-9)


def _is_chance_to_draft(policy, state, expected):
    """Whether k >= 1 in as many of 5,000 rounds as a chance of `expected` allows; no at 1e-9."""
    params, words = np.array(policy.params), np.random.default_rng(4).integers(0, 2**32, 5000)
    drafted = sum(planned(params, state, (word + 0.5) / 2**32) > 0 for word in words)
    return stats.binomtest(drafted, 5000, expected).pvalue > 1e-9


def test_drafting_resumes_where_it_pays():
    """Drafting one token at c = 0.5 pays above acceptance 1/2: after 3 of 12 the probability to
    draft is that of the posterior, and a round of k = 0 leaves it as it is; at c = 1.5 no
    acceptance can pay and nothing is ever drafted. Control: the chance of a posterior that missed
    two acceptances is refused.
    """
    cost = CostModel.from_ratio(0.5, 1)
    trace = synthetic.iid(0.5, 1, 8, 1)
    policy = cost_ts()(trace, cost)
    params, state = policy.start()
    state[2:] = 3, 9
    draws = stats.beta.sf(0.5, 4, 10)
    assert draws > 0.01
    assert _is_chance_to_draft(policy, state, draws)
    assert not _is_chance_to_draft(policy, state, stats.beta.sf(0.5, 2, 10))
    for _ in range(5):
        policy.compiled()[1](params, state, 0, 0, 0, np.zeros((1, 0)), 0.0)
    assert state[2:].tolist() == [3, 9]
    assert _is_chance_to_draft(policy, state, draws)
    hopeless = cost_ts()(trace, CostModel.from_ratio(1.5, 1))
    assert _is_chance_to_draft(hopeless, state, 0.0)


@pytest.mark.parametrize("variant", ["shared", "depth"])
def test_policy_recovers_after_low_acceptance(variant):
    """150 rows that accept nothing, then 1,500 that accept all: with decay it drafts most of the
    second part again; the greedy rule without decay stays at k = 0, which is why decay is there.
    """
    bad, good = synthetic.iid(0.0, 1, 150, 4), synthetic.iid(1.0, 1, 1500, 4)
    trace = joined(bad, good)
    cost = CostModel.from_ratio(0.6, 4)
    later = {}
    for rule in ("decay=0.9", "greedy=true"):
        policy = make(f"cost_ts:{variant},{rule},scope=stream", trace, cost)
        rounds = replay(trace, policy, 3, cost)
        later[rule] = rounds.drafted[rounds.row >= 800].mean()
    drafted = list(later.values())
    assert drafted[0] > 2
    assert drafted[1] == 0


def test_draft_length_follows_the_cost():
    """On steady acceptance 0.7 it comes within 3% of the best fixed length at every price, where
    Beta-TS drafts the same at all of them.
    """
    trace = synthetic.iid(0.7, 1, 3000, 8, seed=2)
    drafted = []
    for c in (0.02, 0.3, 1.0):
        cost = CostModel.from_ratio(c, 8)
        best = min(cost.seconds(replay(trace, fixed(k), cost=cost)).sum() for k in range(9))
        for rule in ("cost_ts", "cost_ts:depth"):
            rounds = replay(trace, make(rule, trace, cost), 1, cost)
            assert best * 0.99 < cost.seconds(rounds).sum() < best * 1.03, (c, rule)
        drafted.append(rounds.drafted.mean())
    assert drafted[0] > 4 > drafted[1] > 0.5 > drafted[2]
    beta = [
        replay(trace, make("beta_ts", trace, cost), 1, CostModel.from_ratio(c, 8))
        for c in (0.02, 1.0)
    ]
    assert beta[0] == beta[1]


@settings(max_examples=60)
@given(LONG, LENGTHS, st.booleans(), st.sampled_from([0.0, 0.1, 2.0]), SCOPE, costs())
def test_ucb_equals_its_twin(trace, lengths, released, exploration, scope, cost):
    arms = [k for k in lengths if k <= trace.K]
    if not arms:
        return
    policy = ucb("released" if released else "ucb1", text(lengths), exploration, scope)(trace, cost)
    same(trace, policy, partial(twins.Ucb, released, arms, exploration, cost), cost)


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

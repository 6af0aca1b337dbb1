"""The oracle against every schedule, and the greedy oracle against the best rate of each round."""

import naive
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import costs, traces

from simspec import CostModel, PolicyError, replay, synthetic
from simspec.policies import greedy_oracle, oracle


@settings(deadline=None, max_examples=60)
@given(traces(max_K=3, max_rows=5, max_sequences=2, optional=False), costs(K=3))
def test_oracle_equals_brute_force_over_every_schedule(trace, cost):
    rounds = replay(trace, oracle(trace, cost), cost=cost)
    seconds = cost.seconds(rounds)
    for s in range(trace.sequences):
        total = seconds[rounds.offset[s] : rounds.offset[s + 1]].sum()
        assert total == pytest.approx(naive.best_time(trace, cost, s), abs=1e-12)


def test_oracle_drops_a_token_where_catching_up_is_expensive():
    """One token is always accepted, never two; catching up a row costs 5, a draft step 1,
    verifying a second token 10 more.
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


def test_oracle_refuses_a_cost_model_that_is_too_short():
    with pytest.raises(PolicyError, match="prices drafts up to 2, the oracle plans up to 4"):
        oracle(synthetic.iid(0.5, 1, 4, 4), CostModel.from_ratio(0.1, 2))


@settings(deadline=None, max_examples=60)
@given(traces(optional=False), costs(), st.booleans())
def test_greedy_oracle_maximises_each_round_below_the_oracle(trace, cost, first_only):
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


def test_greedy_oracle_is_no_upper_bound():
    """A better rate now can end the round where the next one is worth less: the dynamic program
    waits.
    """
    worse = []
    for seed in range(20):
        trace, cost = synthetic.iid(0.6, 5, 40, 4, seed), CostModel.from_ratio(0.3, 4)
        times = [
            cost.seconds(replay(trace, policy(trace, cost), cost=cost)).sum()
            for policy in (greedy_oracle, oracle)
        ]
        worse.append(times[0] / times[1] - 1)
    assert min(worse) >= -1e-12
    assert max(worse) > 0.001

"""Every policy by its name, below the oracle on any recording and cost; the fitted bound between
the best of them and the oracle.
"""

import os
from dataclasses import replace

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import costs, traces

from simspec import CostModel, PolicyError, load_trace, replay, synthetic
from simspec.policies import BUILTIN, greedy_oracle, make, oracle
from simspec.replay.sweep import check_policy
from simspec.trace.acceptance import drawn_trace
from simspec.trace.recordings import recordings

ARGUMENTS = {"fixed": ("0", "1", "3"), "confidence": ("0.5", "0.7,inclusive=false")}
"""Of names that take no defaults, or where one more form matters; all others by their name."""
MORE = {
    "cost_ts": ("depth", "greedy=true,decay=0.5"),
    "entropy": ("2,inclusive=false",),
    "goodput": ("released", "shortest=1"),
    "product": ("0.6,theta,shortest=1,inclusive=false",),
    "ucb": ("released",),
}
TEXTS = [
    f"{name}:{rest}" if rest else name
    for name in BUILTIN
    for rest in (*ARGUMENTS.get(name, ("",)), *MORE.get(name, ()))
]
SLOW = bool(os.environ.get("SIMSPEC_SLOW"))


def seconds(trace, policy, cost, seed=0):
    return cost.reading(policy.reads).seconds(replay(trace, policy, seed, cost)).sum()


def served(trace, cost, texts=TEXTS):
    """The policies that this recording supports."""
    for text in texts:
        try:
            policy = make(text, trace, cost)
            check_policy(trace, policy, cost)
        except ValueError:
            continue
        yield policy


def faster(bound, trace, cost, seed):
    """Names of the policies that take less time than the bound."""
    least = seconds(trace, bound, cost)
    return [
        policy.name
        for policy in served(trace, cost)
        if seconds(trace, policy, cost, seed) < least - 1e-9
    ]


@st.composite
def recorded(draw):
    """Recordings of any shape; acceptance independent, decaying, or drawn."""
    seed, K = draw(st.integers(0, 2**32)), draw(st.integers(1, 6))
    size = (draw(st.integers(1, 3)), draw(st.integers(1, 40)))
    share = st.integers(0, 16).map(lambda n: n / 16)
    kind = draw(st.sampled_from(["any", "iid", "decaying", "rejection"]))
    if kind == "iid":
        return synthetic.iid(draw(share), *size, K, seed, confidence=draw(st.booleans()))
    if kind == "decaying":
        alphas = draw(st.lists(share, min_size=K, max_size=K))
        return synthetic.decaying(alphas, *size, seed, confidence=draw(st.booleans()))
    trace = draw(traces(max_rows=40, optional=False))
    if kind == "rejection":
        ratio = np.random.default_rng(seed).random((trace.rows, trace.K)).astype(np.float32)
        rule = replace(trace.meta, rule="rejection", features=(), temperature=1.0)
        empty = {"run": np.zeros_like(trace.run), "feature": None, "ratio": ratio, "meta": rule}
        return drawn_trace(replace(trace, **empty), seed)
    return trace


@st.composite
def charged(draw, K=6):
    """Costs of any shape, with or without a charge for reading features."""
    cost = draw(costs(K))
    return replace(cost, feature=draw(st.sampled_from([0.0, 1 / 64, 0.5])))


def test_every_policy_of_chains_is_examined():
    assert {text.partition(":")[0] for text in TEXTS} == set(BUILTIN)
    trace = load_trace(recordings()["tiny-model-greedy"])
    cost = CostModel.from_ratio(0.1, trace.K)
    left_out = {text for text in TEXTS} - {policy.name for policy in served(trace, cost)}
    assert {make(text, trace, cost).name for text in left_out if "theta" not in text}.issubset(
        {policy.name for policy in served(trace, cost)}
    )


@settings(deadline=None, max_examples=400 if SLOW else 40)
@given(recorded(), charged(), st.integers(0, 2**32))
def test_no_policy_by_name_beats_the_oracle(trace, cost, seed):
    assert faster(oracle.resolve(trace, cost), trace, cost, seed) == []


def test_a_bound_that_is_none_is_beaten():
    """Controls: the greedy oracle, the oracle of other costs, and one that never drops a token."""
    trace, cost = synthetic.iid(0.6, 5, 60, 4, 1), CostModel.from_ratio(0.3, 4)
    assert "oracle" in faster(greedy_oracle.resolve(trace, cost), trace, cost, 0)
    other = oracle.resolve(trace, CostModel.from_ratio(2.0, 4))
    assert "cost_ts" in faster(other, trace, cost, 0)
    always = synthetic.decaying([1.0, 0.0], 1, 6)
    dear = CostModel([0, 1, 2], [10, 10, 20], [0, 5], 0, 10)
    kept = replace(oracle.resolve(always, dear), params=_never_drops(always, dear))
    assert "oracle" in faster(kept, always, dear, 0)


def _never_drops(trace, cost):
    """The oracle's plan with every dropped token kept."""
    head, *rest = oracle.resolve(trace, cost).params
    return (head, *map(abs, rest))


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

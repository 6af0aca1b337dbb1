"""Lock steps: a batch of one is the replay, batches equal the slow twin and measured cells."""

from dataclasses import replace

import naive_batch
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import costs, traces
from token_cost import TokenCost

from simspec import CostModel, policies, replay, synthetic
from simspec.cost.batch import BatchCost, batch_cost
from simspec.cost.table import CostTable
from simspec.replay import metrics
from simspec.replay.batches import plain_steps, policy_steps

NAMES = (0, 3, "confidence:0.5", "beta_ts", "cost_ts", "ucb")
TIME = st.integers(0, 16).map(lambda n: n / 64)


@st.composite
def token_costs(draw):
    return TokenCost(draw(TIME) + 0.25, *(draw(TIME) for _ in range(7)))


def named(name, trace):
    """The policy's text; a number is a fixed length, as far as the recording reaches."""
    return name if isinstance(name, str) else f"fixed:{min(name, trace.K)}"


def twin_rounds(rounds, trace):
    """[[(row within the sequence, computed, drafted, accepted)]]."""
    columns = zip(rounds.row, rounds.computed, rounds.drafted, rounds.accepted)
    listed = [tuple(map(int, values)) for values in columns]
    return [
        [(row - int(trace.offset[s]), *rest) for row, *rest in listed[first:last]]
        for s, (first, last) in enumerate(zip(rounds.offset, rounds.offset[1:]))
    ]


@settings(deadline=None, max_examples=40)
@given(traces(), costs(), st.sampled_from(NAMES))
def test_batch_of_one_is_the_replay(trace, cost, name):
    policy = policies.make(named(name, trace), trace, cost)
    rounds = replay(trace, policy, 3, cost)
    paid = cost.reading(policy.reads)
    steps = policy_steps(trace, rounds, cost, 1, reads=policy.reads)
    assert steps.seconds.tolist() == paid.seconds(rounds).tolist()
    plain = plain_steps(trace, cost, 1).share.sum()
    figures = metrics.summary(rounds, trace, paid)
    assert plain / steps.share.sum() == figures.speedup
    assert batch_cost(cost, 1).alike(1, cost.context) is cost


@settings(deadline=None, max_examples=60)
@given(
    traces(), token_costs(), st.sampled_from((0, 2, 6, "confidence:0.5")), st.integers(1, 9),
    st.sampled_from((None, 0.0, 7.0))
)  # fmt: skip
def test_batches_equal_the_slow_twin(trace, tokens, name, batch, context):
    """At a cost affine in tokens, with cached tokens, the kernel step and a backlog."""
    rounds = replay(trace, policies.parse(named(name, trace)), 0)
    cost = replace(tokens.cost(6, 3.0), catch_up=np.array([0.0, 0.5, 0.75]))
    prompts = np.diff(trace.prompt_offset).tolist()
    twin = twin_rounds(rounds, trace)
    times, shares = naive_batch.lock_step(twin, prompts, tokens, [0.0, 0.5, 0.75], batch, context)
    steps = policy_steps(trace, rounds, cost, batch, context)
    np.testing.assert_allclose(steps.seconds, times)
    np.testing.assert_allclose(steps.share, shares)
    lengths = np.diff(trace.offset)
    plain = [[(row, 0, 0, 0) for row in range(length)] for length in lengths]
    times, shares = naive_batch.lock_step(plain, prompts, tokens, [0.0], batch, context)
    steps = plain_steps(trace, cost, batch, context)
    np.testing.assert_allclose(steps.seconds, times)
    np.testing.assert_allclose(steps.share, shares)
    assert (steps.load.active == batch).all()


def test_steps_by_hand():
    """Two sequences of 4 and 2 tokens, run lengths 1 and 0; a token costs 1, a pass 10."""
    trace = synthetic.iid(1.0, 1, 4, 1).select([0, 0])
    short = replace(
        trace,
        offset=np.array([0, 4, 6]),
        budget=np.array([4, 2]),
        **{name: getattr(trace, name)[:6] for name in ("token", "depth", "feature")},
        run=np.array([1, 1, 1, 0, 0, 0], np.uint8),
    )
    cost = TokenCost(10.0, 1.0).cost(1)
    rounds = replay(short, policies.parse("fixed:1"))
    assert twin_rounds(rounds, short) == [
        [(0, 1, 1, 1), (2, 1, 1, 1)],
        [(0, 1, 1, 0), (1, 0, 0, 0)],
    ]
    refill = policy_steps(short, rounds, cost, 2)
    assert refill.seconds.tolist() == [10 + 4, 10 + 3, 14, 13]
    plain = plain_steps(short, cost, 2)
    assert plain.seconds.tolist() == [12] * 6
    assert plain.load.active.tolist() == [2] * 6


@settings(deadline=None, max_examples=40)
@given(token_costs(), st.integers(1, 6), st.integers(0, 4), st.sampled_from((3.0, 20.0)))
def test_policies_plan_with_the_cost_of_equal_sequences(tokens, batch, K, context):
    trace = synthetic.iid(0.7, 1, 30, 4, seed=1).select([0] * batch)
    cost = replace(tokens.cost(4, 3.0), catch_up=np.array([0.0, 0.5]))
    rounds = replay(trace, policies.parse(f"fixed:{K}"))
    alike = batch_cost(cost, batch).alike(batch, context)
    steps = policy_steps(trace, rounds, cost, batch, context)
    one = rounds.select([0])
    np.testing.assert_allclose(steps.seconds, np.tile(alike.seconds(one), batch))
    plain = plain_steps(trace, cost, batch, context)
    np.testing.assert_allclose(plain.seconds, alike.baseline)


def test_measured_batches_are_the_tables_cells():
    small, large = (
        CostModel(draft=[0, 1, 2], verify=[4, 5, 7], catch_up=[0, 0.5], overhead=1, baseline=4),
        CostModel(draft=[0, 3, 6], verify=[8, 9, 13], catch_up=[0, 2.0], overhead=1, baseline=9),
    )
    table = CostTable((1, 4), (0,), ((small,), (large,)))
    assert batch_cost(table, 3) == BatchCost(large, 4)
    trace = synthetic.iid(0.6, 1, 40, 2, seed=2).select([0, 0, 0, 0])
    rounds = replay(trace, policies.parse("fixed:2"))
    steps = policy_steps(trace, rounds, table, 4)
    np.testing.assert_allclose(steps.seconds, np.tile(large.seconds(rounds.select([0])), 4))
    assert set(plain_steps(trace, table, 4).seconds) == {9.0}
    # Drafts of 2, 2, 2 and 0 tokens: the pass is between the cell's entries of 1 and 2.
    load = replace(
        steps.load, **{f: getattr(steps.load, f)[:1] for f in steps.load.__dataclass_fields__}
    )
    ragged = replace(load, computed=np.array([6]), drafted=np.array([6]), catch_up=np.zeros(1))
    assert BatchCost(large, 4).seconds(ragged).tolist() == [1 + 6 + 11.0]
    assert table.at(4).draft.tolist() == [0, 3, 6]
    with pytest.raises(ValueError, match="asked for 5"):
        policy_steps(trace, rounds, table, 5)


def test_features_and_further_rows_are_priced():
    trace = synthetic.iid(1.0, 2, 9, 2, confidence=True)
    cost = replace(TokenCost(1.0).cost(2), feature=0.25, predictor=0.125)
    rounds = replay(trace, policies.parse("fixed:2"))
    free, read, learned, rows = (
        policy_steps(trace, rounds, priced, 2, reads=reads).seconds[0]
        for priced, reads in (
            (cost, ()),
            (cost, ("confidence",)),
            (cost, ("theta",)),
            (replace(cost, node=0.5), ()),
        )
    )
    assert (free, read, learned, rows) == (1.0, 1.0 + 4 * 0.25, 1.0 + 4 * 0.125, 1.0 + 2 * 0.5)
    assert BatchCost(cost).alike(3, 0).predictor == 3 * 0.125


@pytest.mark.parametrize(
    "change, words",
    [
        ({"batch": 0}, "batch is 0, expected 1 to 4096"),
        ({"batch": 4097}, "batch is 4097"),
        ({"batch": 2.0}, "expected a whole number"),
        ({"batch": True}, "expected a whole number"),
        ({"context": -1.0}, "context is -1"),
        ({"cost": CostModel.from_ratio(0.1, 1)}, "prices drafts up to 1, a round computed 2"),
        ({"cost": CostModel([0, 0, 0], [1, 2, 3], [0], 0, 1).truncate(1)}, "computed 2"),
    ],
)
def test_what_cannot_be_priced_is_one_line(change, words):
    trace = synthetic.iid(0.5, 4, 20, 2)
    rounds = replay(trace, policies.parse("fixed:2"))
    arguments = {"cost": CostModel.from_ratio(0.1, 2), "batch": 2, "context": None} | change
    with pytest.raises(ValueError, match=words):
        policy_steps(trace, rounds, **arguments)
    one = synthetic.iid(0.5, 4, 20, 1)
    with pytest.raises(ValueError, match="too few to continue"):
        policy_steps(one, replay(one, policies.parse("fixed:1")), CostModel.from_ratio(0.1, 1), 2)

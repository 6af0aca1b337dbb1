"""Kernel == slow twin == Stepper, for every policy, on any valid trace."""

from functools import cache

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import EXAM, as_lists, costs, grids, nosy, traces

from simspec import (
    CostModel,
    Policy,
    PolicyError,
    Rounds,
    Stepper,
    Trace,
    TraceError,
    TraceMeta,
    committed,
    replay,
    synthetic,
)
from simspec.policies import confidence, fixed, oracle
from simspec.policy.policy import walk

SEED = st.integers(0, 2**64 - 1)


def step_through(trace, policy, seed, cost):
    """The loop of an engine, fed from the recording."""
    stepper = Stepper(policy, trace.K, seed, cost, trace.meta.features)
    rounds = list(walk(stepper, trace))
    starts = np.searchsorted([row for row, *_ in rounds], trace.offset)
    return Rounds(starts, *np.array(rounds).T)


@cache
def examples():
    """Random (trace, cost, seed) for all policies: to draw them takes longer than to replay."""
    drawn = []

    @settings(deadline=None, max_examples=40)
    @given(traces(optional=False), costs(), SEED)
    def draw(trace, cost, seed):
        drawn.append((trace, cost, seed))

    draw()
    return drawn


@pytest.mark.parametrize("policy", EXAM, ids=lambda policy: policy.name)
def test_kernel_equals_slow_twin_and_stepper(policy):
    for trace, cost, seed in examples():
        rounds = replay(trace, policy, seed, cost)
        assert as_lists(rounds) == naive.replay(trace, policy, seed, cost, grids(trace))
        assert step_through(trace, policy, seed, cost) == rounds


@settings(deadline=None, max_examples=40)
@given(traces(optional=False), costs(), SEED)
def test_oracle_runs_like_any_other_policy(trace, cost, seed):
    policy = oracle(trace, cost)
    rounds = replay(trace, policy, seed, cost)
    assert as_lists(rounds) == naive.replay(trace, policy, seed, cost, grids(trace))
    assert step_through(trace, policy, seed, cost) == rounds


@settings(deadline=None, max_examples=60)
@given(traces(optional=False), st.sampled_from(EXAM), SEED)
def test_rounds_tile_the_sequence(trace, policy, seed):
    rounds = replay(trace, policy, seed)
    np.testing.assert_array_equal(rounds.row[rounds.offset[:-1]], trace.offset[:-1])
    added = committed(rounds, trace)
    assert added.sum() == trace.rows
    extra = rounds.accepted + 1 - added
    last = np.zeros(len(rounds), bool)
    last[rounds.offset[1:] - 1] = True
    assert set(extra[~last]) <= {0}
    assert set(extra[last]) <= {0, 1}
    # One fewer than accepted + 1 only where an accepted end token leaves no bonus.
    assert (extra[last] <= np.isin(trace.token[trace.offset[1:] - 1], trace.meta.end_tokens)).all()
    assert (rounds.drafted <= rounds.computed).all()
    assert (rounds.computed - rounds.drafted <= 1).all()
    assert (rounds.computed <= trace.depth[rounds.row]).all()
    assert (rounds.accepted <= trace.run[rounds.row]).all()


@settings(deadline=None, max_examples=60)
@given(
    traces(optional=False),
    st.sampled_from([p for p in EXAM if p.scope == "sequence"]),
    SEED,
    st.data(),
)
def test_subset_replays_as_within_the_whole(trace, policy, seed, data):
    indices = data.draw(st.lists(st.integers(0, trace.sequences - 1), min_size=1, max_size=5))
    assert replay(trace.select(indices), policy, seed) == replay(trace, policy, seed).select(
        indices, trace
    )


def test_a_readable_example():
    """[row, computed, drafted, accepted] of fixed:2 and of an exclusive confidence exit; budget
    6, end token 9 accepted.
    """
    named = {"end_tokens": (9,), "tasks": ("x",), "ids": ("p",)}
    meta = TraceMeta("greedy", "t", "d", K=3, features=(("confidence", "identity"),), **named)
    sure, unsure = 255, 0
    trace = Trace(
        offset=np.array([0, 5]), budget=np.array([6]), token=np.array([1, 2, 3, 4, 9], np.int32),
        depth=np.array([3, 3, 2, 3, 1], np.uint8), run=np.array([1, 0, 2, 2, 1], np.uint8),
        feature=np.array([[sure, unsure, sure]] * 2 + [[sure] * 3] * 3, np.uint8)[:, :, None],
        meta=meta
    )  # fmt: skip
    assert as_lists(replay(trace, fixed(2))) == [[(0, 2, 2, 1), (2, 2, 2, 2)]]
    assert as_lists(replay(trace, confidence(0.5, inclusive=False))) == [
        [(0, 2, 1, 1), (2, 2, 2, 2)]
    ]
    # The text is over after five tokens, but only the end token says so: a sixth was allowed, so
    # row 4 may draft.
    assert as_lists(replay(trace, fixed(1))) == [[(0, 1, 1, 1), (2, 1, 1, 1), (4, 1, 1, 1)]]
    assert committed(replay(trace, fixed(1)), trace).tolist() == [2, 2, 1]


def test_replay_refuses_unsupported_input():
    plain = synthetic.iid(0.5, 1, 4, 3)
    with pytest.raises(TraceError, match="'confidence' is not in this trace"):
        replay(plain, confidence(0.5))
    with pytest.raises(PolicyError, match="drafts up to 4, here drafts reach 3"):
        replay(plain, fixed(4))
    with pytest.raises(ValueError, match="prices drafts up to 1"):
        replay(plain, fixed(3), cost=CostModel.from_ratio(0.1, 1))
    with pytest.raises(ValueError, match="seed is -1"):
        replay(plain, fixed(3), seed=-1)


def _audit_more(params, state, slot, features, u):
    for i in range(features.shape[0]):
        if np.isnan(features[i, 0]) != (i >= slot + params[0]):
            state[0] = 1.0
    return slot < 2, state[0] == 0.0


def _audit_observe(params, state, computed, drafted, accepted, features, cost):
    for i in range(features.shape[0]):
        if np.isnan(features[i, 0]) != (i >= computed + params[0]):
            state[0] = 1.0


@pytest.mark.parametrize("shift", [0, 1, -1])
def test_policies_see_computed_features_and_nan_elsewhere(shift):
    """The audit drops its last token once a row is NaN that should not be, or the reverse;
    shifted by one it must.
    """
    trace = synthetic.iid(0.6, 3, 12, 4, confidence=True)
    policy = Policy("audit", _audit_more, _audit_observe, (shift,), (0.0,), reads=("confidence",))
    rounds = replay(trace, policy)
    assert (rounds.computed == rounds.drafted).all() == (shift == 0)
    assert step_through(trace, policy, 0, CostModel.from_ratio(0.1, 4)) == rounds


def test_rounds_join_select_and_equality():
    rounds = Rounds.join([[(0, 2, 2, 1), (2, 1, 0, 0)], [(0, 0, 0, 0)]], start=np.array([0, 3, 4]))
    assert rounds.row.tolist() == [0, 2, 3]
    assert rounds.offset.tolist() == [0, 2, 3]
    assert len(rounds) == 3
    assert rounds == Rounds.join([[(0, 2, 2, 1), (2, 1, 0, 0)], [(3, 0, 0, 0)]])
    assert rounds != Rounds.join([[(0, 2, 2, 1)], [(2, 1, 0, 0), (3, 0, 0, 0)]])
    assert rounds.select([1]).row.tolist() == [3]


def test_stream_state_follows_file_order():
    trace = synthetic.iid(0.5, 6, 30, 5, seed=2, confidence=True)
    stream, fresh = replay(trace, nosy("stream"), 3), replay(trace, nosy(), 3)
    assert as_lists(stream)[0] == as_lists(fresh)[0]
    assert stream != fresh

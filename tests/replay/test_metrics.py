import math
from dataclasses import asdict, replace

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import EXAM, as_lists, costs, traces

from simspec import CostModel, Rounds, formulas, replay, summary, synthetic
from simspec.policies import fixed


def same(a, b):
    return (math.isnan(a) and math.isnan(b)) or a == pytest.approx(b, rel=1e-12)


@settings(deadline=None, max_examples=100)
@given(traces(optional=False), costs(), st.sampled_from(EXAM), st.integers(0, 2**32))
def test_summary_equals_the_slow_twin(trace, cost, policy, seed):
    rounds = replay(trace, policy, seed, cost)
    computed, expected = (
        asdict(summary(rounds, trace, cost)),
        naive.metrics(as_lists(rounds), trace, cost),
    )
    assert all(
        same(a, b)
        for a, b in zip(
            computed.pop("accept_by_depth"), expected.pop("accept_by_depth"), strict=True
        )
    )
    for name, value in expected.items():
        assert same(computed[name], value), name
    if computed["computed"]:
        assert computed["hm"] == pytest.approx(
            formulas.harmonic_mean(computed["v_d"], computed["r_d"]), abs=1e-12
        )
    else:
        assert computed["hm"] == 0
    assert computed["sequences"] == trace.sequences


@settings(deadline=None, max_examples=50)
@given(traces(optional=False), costs(), st.sampled_from(EXAM))
def test_groups_are_the_summaries_of_their_sequences(trace, cost, policy):
    rounds = replay(trace, policy, 1, cost)
    groups = summary(rounds, trace, cost, trace.task)
    assert list(groups) == list(dict.fromkeys(trace.task))
    for label, computed in groups.items():
        indices = [s for s, task in enumerate(trace.task) if task == label]
        part = trace.select(indices)
        alone = asdict(summary(rounds.select(indices, trace), part, cost))
        for name, value in asdict(computed).items():
            if name != "accept_by_depth":
                assert same(value, alone[name]), name
    assert sum(m.accepted for m in groups.values()) == summary(rounds, trace, cost).accepted


def test_draft_limits_are_not_counted_as_cuts():
    trace = synthetic.iid(0.5, 2, 10, 4)
    shallow = replace(trace, depth=np.full(20, 2, np.uint8), run=np.minimum(trace.run, 2))
    cost = CostModel.from_ratio(0.1, 4)
    rounds = replay(shallow, fixed(2))
    assert (
        summary(rounds, shallow, cost, K=2).cut_share
        == 0
        < summary(rounds, shallow, cost).cut_share
    )
    assert summary(replay(shallow, fixed(4)), shallow, cost).cut_share > 0.5
    assert summary(replay(trace, fixed(4)), trace, cost).cut_share == 0


def test_plain_decoding():
    trace = synthetic.iid(0.5, 2, 10, 4)
    m = summary(replay(trace, fixed(0)), trace, CostModel.from_ratio(0.1, 4))
    assert (m.rounds, m.tokens, m.drafted, m.speedup, m.r_d, m.hm) == (20, 20, 0, 1.0, 0, 0)
    assert math.isnan(m.v_d)


def test_a_dropped_token_counts_in_v_d_and_not_in_the_acceptance_rate():
    """By hand: 2 rounds, 3 and 2 tokens computed, the last of the first dropped, 2 accepted."""
    trace = synthetic.iid(1.0, 1, 5, 3)
    rounds = Rounds.join([[(0, 3, 2, 2), (3, 2, 2, 1)]])
    m = summary(rounds, trace, CostModel.from_ratio(0.1, 4))
    assert m.v_d == 3 / 5
    assert m.acceptance_rate == 3 / 4
    assert m.hm == pytest.approx(formulas.harmonic_mean(3 / 5, 3 / 5))
    assert formulas.eesd_time(m.v_d, m.r_d, m.tokens, 0.1, 1.0) == pytest.approx(m.seconds)


def test_free_rounds_have_no_finite_speedup():
    trace = synthetic.iid(0.5, 1, 5, 2)
    assert (
        summary(replay(trace, fixed(1)), trace, CostModel([0, 0, 0], [0, 0, 0], [0], 0, 1)).speedup
        == math.inf
    )


def test_mismatched_rounds_and_groups_are_refused():
    trace, cost = synthetic.iid(0.5, 2, 10, 4), CostModel.from_ratio(0.1, 4)
    rounds = replay(trace, fixed(2))
    with pytest.raises(ValueError, match="do not start where"):
        summary(rounds, synthetic.iid(0.5, 2, 11, 4), cost)
    with pytest.raises(ValueError, match="do not start where"):
        summary(Rounds.join([[(0, 0, 0, 0)]]), trace, cost)
    with pytest.raises(ValueError, match="groups has 1 labels"):
        summary(rounds, trace, cost, ["a"])

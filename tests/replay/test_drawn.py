"""Recordings of the rejection rule: what is accepted is drawn from `ratio`, and all that reads
rounds reads such draws.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import costs, traces

from simspec import CostModel, Policy, PolicyError, Trace, TraceMeta, policies, replay, sweep
from simspec.check import recording_checks
from simspec.numerics import rng
from simspec.numerics.rng import ACCEPT
from simspec.policies import fixed, greedy_oracle, hf_heuristic, oracle
from simspec.reports.drafters import compare_drafters
from simspec.reports.oracle_gap import score
from simspec.trace.acceptance import by_depth, drawn_trace, expected_accepted_length

HELD = settings(deadline=None, max_examples=60, derandomize=True)
SEED = st.integers(0, 2**64 - 1)


@st.composite
def recordings(draw, **sizes):
    """Random valid recordings of the rejection rule, certain and impossible slots among them."""
    trace = draw(traces(optional=False, **sizes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ratio = rng.random((trace.rows, trace.K)) * rng.choice(
        [0.0, 1.0, 2.0, 4.0], (trace.rows, trace.K)
    )
    top_p = draw(st.sampled_from([1.0, 0.9]))
    meta = replace(trace.meta, rule="rejection", temperature=1.0, features=(), top_p=top_p)
    ratio, none = np.minimum(ratio, 1).astype(np.float32), np.zeros_like(trace.run)
    return replace(trace, run=none, ratio=ratio, feature=None, meta=meta)


def sixteen(seed=0, K=4, length=20):
    """A recording of sixteen texts of equal length, acceptance falling with depth."""
    rows, random = 16 * length, np.random.default_rng(seed)
    ratio = np.clip(random.random((rows, K)) * 1.6 - 0.05 * np.arange(K), 0, 1).astype(np.float32)
    ids, tasks = tuple(map(str, range(16))), ("x", "y") * 8
    meta = TraceMeta("rejection", "t", "q", K, temperature=1.0, tasks=tasks, ids=ids)
    cuts, token = np.arange(0, rows + 1, length), np.zeros(rows, np.int32)
    depth, none = np.full(rows, K, np.uint8), np.zeros(rows, np.uint8)
    return Trace(cuts, np.full(16, length), token, depth, none, meta, ratio=ratio)


@HELD
@given(recordings(), SEED)
def test_accepted_length_counts_leading_accept_draws(trace, seed):
    drawn = drawn_trace(trace, seed)
    for s in range(trace.sequences):
        first, end = map(int, trace.offset[s : s + 2])
        for t in range(first, end):
            most = min(int(trace.depth[t]), end - t)
            accepted = [
                rng.uniform(seed, int(trace.sequence[s]), t - first, j, ACCEPT) < trace.ratio[t, j]
                for j in range(most)
            ]
            assert drawn.run[t] == (accepted.index(False) if False in accepted else most)
    assert drawn.ratio is None
    assert drawn_trace(drawn, 1) is drawn


@HELD
@given(recordings(), SEED, costs())
def test_replay_equals_the_drawn_trace_of_its_seed(trace, seed, cost):
    for policy in (fixed(1), hf_heuristic(1), policies.parse("beta_ts")):
        assert replay(trace, policy, seed, cost) == replay(
            drawn_trace(trace, seed), policy, seed, cost
        )
    part = [trace.sequences - 1, 0]  # a selection draws what the whole drew
    assert replay(trace.select(part), fixed(1), seed, cost) == replay(
        trace, fixed(1), seed, cost
    ).select(part, trace)


def ways(trace, t, most):
    """Every (run, its probability) of row t, a run of at most `most`."""
    alive = 1.0
    for run in range(most):
        yield run, alive * (1 - float(trace.ratio[t, run]))
        alive *= float(trace.ratio[t, run])
    yield most, alive


@HELD
@given(recordings(max_K=4), st.data())
def test_expected_accepted_lengths_equal_enumeration(trace, data):
    K = data.draw(st.integers(0, trace.K))
    mean, short = expected_accepted_length(trace), expected_accepted_length(trace, K)
    for s in range(trace.sequences):
        for t in range(int(trace.offset[s]), int(trace.offset[s + 1])):
            most = min(int(trace.depth[t]), int(trace.offset[s + 1]) - t)
            cap = min(K, int(trace.budget[s]) - (t - int(trace.offset[s])) - 1)
            assert mean[t] == pytest.approx(
                sum(run * odds for run, odds in ways(trace, t, most)), abs=1e-12
            )
            assert short[t] == pytest.approx(
                sum(min(run, max(cap, 0)) * odds for run, odds in ways(trace, t, most)), abs=1e-12
            )


def some(K, cap=6):
    """A text of a few rows, short enough for all its runs to be gone through."""
    ratio = np.random.default_rng(K).random((cap, K)).astype(np.float32)
    meta = TraceMeta("rejection", "t", "q", K, temperature=0.7, tasks=("x",), ids=("x",))
    column = np.full(cap, K, np.uint8)
    return Trace(
        np.array([0, cap]), np.array([cap]), np.zeros(cap, np.int32), column, 0 * column, meta,
        ratio=ratio
    )  # fmt: skip


@pytest.mark.parametrize("text", ["fixed:1", "fixed:2", "hf_heuristic:1"])
def test_mean_over_seeds_equals_enumeration(text):
    """Accepted tokens of whole texts: 4,000 seeds within 5 standard errors of the exact mean, a
    false alarm in a million.
    """
    trace, policy = some(2), policies.parse(text)
    rows = [list(ways(trace, t, min(2, trace.rows - t))) for t in range(trace.rows)]
    ordinary, wanted = drawn_trace(trace), 0.0
    for runs in product(*rows):
        one = replace(ordinary, run=np.array([run for run, _ in runs], np.uint8))
        wanted += np.prod([odds for _, odds in runs]) * replay(one, policy).accepted.sum()

    def stray(recording):
        got = np.array(
            [replay(recording, policy, seed).accepted.sum() for seed in range(4000)], float
        )
        return abs(got.mean() - wanted) / (got.std() / np.sqrt(len(got)))

    assert stray(trace) < 5 < stray(replace(trace, ratio=trace.ratio * np.float32(0.9)))


def test_acceptance_by_depth_sums_probabilities():
    trace = sixteen()
    held, tried = by_depth(trace)
    many = np.mean([by_depth(drawn_trace(trace, seed)) for seed in range(300)], axis=0)
    assert np.allclose(many[0], held, atol=0.7)
    assert np.allclose(many[1], tried, atol=0.7)
    assert not np.allclose(many[0][:, 1:], held[:, :-1], atol=0.7)  # control: another depth


def test_score_gives_each_draw_its_own_oracle():
    trace, cost = sixteen(), CostModel.from_ratio(0.1, 4)
    (result,) = score(
        {"r": trace}, cost, ["fixed:2", "beta_ts"], replicates=3, seed=5, resamples=200
    )
    draws = [drawn_trace(trace, seed) for seed in (5, 6, 7)]
    best = np.mean([cost.seconds(replay(one, oracle(one, cost), cost=cost)).sum() for one in draws])
    mine = np.mean(
        [
            cost.seconds(replay(trace, policies.parse("beta_ts"), seed, cost)).sum()
            for seed in (5, 6, 7)
        ]
    )
    assert result["speedup_oracle"] == pytest.approx(trace.rows / best)
    assert result["speedup_oracle"] > result["speedup_fixed"] > 1
    assert result["policies"][1]["speedup"] == pytest.approx(trace.rows / mine)
    assert all(row["low"] <= row["share"] <= row["high"] <= 1 for row in result["policies"])
    usual = score({"r": trace}, cost, replicates=2, resamples=200)[0]["policies"]
    assert "beta_ts:acceptance" in [row["policy"] for row in usual]
    assert not [row for row in usual if "confidence" in row["policy"]]
    with pytest.raises(ValueError, match="replicates is 0"):
        score({"r": trace}, cost, ["fixed:2"], replicates=0)


def test_sweeps_lineups_and_checks_work_on_draws():
    trace = sixteen()
    table = sweep(trace, ["fixed:0", "fixed:3", "beta_ts"], 0.1, replicates=3, progress=False)
    assert table.random.all()
    assert (table.groupby("policy").accepted.nunique() > 1).tolist() == [True, False, True]
    row = compare_drafters({"r": trace}, 0.1)[0]
    assert row.rule == "rejection"
    assert row.best_k > 0
    assert row.speedup.value == pytest.approx(row.expected.value, rel=0.2)
    checks = recording_checks("r", trace, 0)
    assert len(checks) > 8
    assert all(entry.ok for entry in checks)


def _more(params, state, slot, features, u):
    return slot < 1, True


def _observe(params, state, computed, drafted, accepted, features, cost):
    pass


@pytest.mark.parametrize("make", [oracle, greedy_oracle])
def test_policies_cannot_anticipate_accept_draws(make):
    trace, cost = some(2), CostModel.from_ratio(0.1, 2)
    with pytest.raises(PolicyError, match="nobody can know it"):
        make(trace, cost)
    # of one draw they can
    assert len(replay(drawn_trace(trace, 3), make(drawn_trace(trace, 3), cost), cost=cost))


def test_policies_without_a_distributional_replay_are_refused():
    trace = some(2)
    for policy, words in (
        (policies.parse("confidence:0.5"), "replays in distribution only"),
        (Policy("foresees", _more, _observe, anticipates=True), "anticipates"),
    ):
        with pytest.raises(PolicyError, match=words) as caught:
            replay(trace, policy)
        assert "\n" not in str(caught.value)
    for K in (-1, 3):
        with pytest.raises(ValueError, match="expected 0 to 2"):
            expected_accepted_length(trace, K)

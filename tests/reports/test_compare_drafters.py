"""Drafters compared: figures from their definitions, and the command's output and errors."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from shell import run
from strategies import costs, traces

from simspec import CostModel, load_trace, replay, synthetic
from simspec.output.frames import json_data, texts
from simspec.policies import fixed
from simspec.reports.drafters import ALL, compare_drafters, drafter_frame
from simspec.trace.acceptance import by_depth, depth_acceptance
from simspec.trace.recordings import recordings

ONCE = ("--cost", 0.1, "--replicates", 1, "--json")


def recording(seed=0, prompts=12, K=4, rate=0.6):
    return synthetic.iid(rate, prompts, 40, K, seed=seed)


def shallow(trace, K, features=True):
    """The recording as if it were K deep, and its drafter exposed no features."""
    optional = {
        name: getattr(trace, name)
        for name in ("rank", "draft_margin", "feature_margin")
        if getattr(trace, name) is not None
    }
    features = trace.meta.features if features else ()
    predictors = trace.meta.predictors if features else {}
    return replace(
        trace, depth=np.minimum(trace.depth, K), run=np.minimum(trace.run, K),
        feature=np.ascontiguousarray(trace.feature[:, :K, : len(features)]), order=None,
        beam=None,
        meta=replace(trace.meta, K=K, features=features, predictors=predictors, tree=()),
        **{name: np.ascontiguousarray(values[:, :K]) for name, values in optional.items()}
    )  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(traces(optional=False))
def test_acceptance_by_depth_is_its_definition(trace):
    accepted, tried = by_depth(trace)
    for s in range(trace.sequences):
        for j in range(1, trace.K + 1):
            tried_rows = right = 0
            for t in range(trace.offset[s], trace.offset[s + 1]):
                room = min(trace.depth[t], trace.offset[s + 1] - t)
                if trace.run[t] >= j - 1 and room >= j:
                    tried_rows += 1
                    right += trace.run[t] >= j
            assert (accepted[s, j - 1], tried[s, j - 1]) == (right, tried_rows)
    alphas = depth_acceptance(trace)[1]
    np.testing.assert_array_equal(np.isnan(alphas), tried.sum(0) == 0)


@settings(deadline=None, max_examples=40)
@given(traces(optional=False, max_sequences=12), costs())
def test_figures_exist_for_every_recording(trace, cost):
    cost = replace(cost, verify=cost.verify + 0.75)  # a round costs a plain step or more
    rows = compare_drafters({"x": trace}, cost, resamples=100)
    assert sum(row.tokens for row in rows[1:]) == rows[0].tokens == trace.rows
    for row in rows:
        assert row.speedup.value > 0
        assert 1 / (1 + cost.draft[row.best_k]) <= row.expected.value <= row.best_k + 1
        assert np.isnan(row.speedup.low) == (row.prompts < 8) == bool(row.note)
        reached = [not np.isnan(estimate.value) for estimate in row.alpha]
        assert reached == sorted(reached, reverse=True)
        json.dumps(json_data(row), allow_nan=False)


def test_iid_acceptance_is_the_rate_at_every_depth():
    """200 prompts: each alpha within 5 standard errors of 0.7, a false alarm of 1e-6 a depth."""
    trace = synthetic.iid(0.7, 200, 60, 5, seed=1)
    accepted, tried = (x.sum(0) for x in by_depth(trace))
    assert (abs(accepted / tried - 0.7) < 5 * np.sqrt(0.21 / tried)).all()
    row = compare_drafters({"x": trace}, 0.1)[0]
    for alpha, h, t in zip(row.alpha, accepted, tried):
        assert alpha.value == pytest.approx(h / t)
        assert alpha.low < alpha.value < alpha.high
    # The formula's sequences have no end: measured 1.0% above the replay, deviation 0.5%.
    assert row.expected.value == pytest.approx(row.speedup.value, rel=0.04)


def test_control_rows_after_a_miss_would_change_acceptance():
    trace = recording(rate=0.3)
    accepted, tried = (x.sum(0) for x in by_depth(trace))
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    everywhere = (trace.run >= 2).sum() / (np.minimum(trace.depth, left) >= 2).sum()
    assert abs(everywhere - accepted[1] / tried[1]) > 0.1


def test_row_follows_from_definitions():
    trace = recording()
    cost = CostModel([0, 0.3, 0.4, 0.5, 0.6], [1.0, 1.05, 1.1, 1.15, 1.2], [0, 0.1], 0.05, 1.1)
    row = compare_drafters({"x": trace}, {"x": cost})[0]
    assert (row.drafter, row.rule, row.task, row.prompts, row.tokens) == (
        trace.meta.drafter, trace.meta.rule, ALL, 12, trace.rows
    )  # fmt: skip
    assert row.c == pytest.approx(0.3 / 1.1)
    assert row.marginal == pytest.approx(0.1 / 1.1)
    speed = [
        trace.rows * cost.baseline / cost.seconds(replay(trace, fixed(k), 0, cost)).sum()
        for k in range(5)
    ]
    assert row.best_k == int(np.argmax(speed)) > 0
    assert row.speedup.value == pytest.approx(max(speed))
    alpha = [estimate.value for estimate in row.alpha[: row.best_k]]
    committed = 1 + sum(np.prod(alpha[:j]) for j in range(1, len(alpha) + 1))
    assert row.expected.value == pytest.approx(committed / (1 + cost.draft[row.best_k] / 1.1))
    for estimate in (row.speedup, row.expected, *row.alpha):
        assert estimate.low < estimate.value < estimate.high
    narrow = compare_drafters({"x": trace}, cost, level=0.5)[0].speedup
    assert row.speedup.low < narrow.low < narrow.high < row.speedup.high
    assert narrow.level == 0.5


def test_shorter_limit_equals_shallower_recording():
    trace = recording(rate=0.9)
    limited, cut = (
        compare_drafters({"x": trace}, 0.1, K=2)[0],
        compare_drafters({"x": shallow(trace, 2)}, 0.1)[0],
    )
    assert limited == cut
    assert len(cut.alpha) == 2
    assert cut.best_k == 2 < compare_drafters({"x": trace}, 0.1)[0].best_k
    assert np.isnan(compare_drafters({"x": trace}, 0.1, K=1)[0].marginal)


def test_tasks_partition_prompts_and_few_prompts_have_no_interval():
    trace = recording()
    trace = replace(trace, meta=replace(trace.meta, tasks=("a",) * 9 + ("b",) * 3))
    everything, a, b = compare_drafters({"x": trace}, 0.1)
    assert [row.task for row in (everything, a, b)] == [ALL, "a", "b"]
    assert everything.tokens == a.tokens + b.tokens
    assert (a.prompts, b.prompts) == (9, 3)
    assert a.speedup.low < a.speedup.high
    assert a.note == ""
    assert np.isnan(b.speedup.low)
    assert b.speedup.value > 0
    assert "3 prompts" in b.note
    assert (
        replace(a, recording="y", task=ALL)
        == compare_drafters({"y": trace.select(range(9))}, 0.1)[0]
    )


def test_useless_drafter_is_best_at_zero_length():
    row = compare_drafters({"x": synthetic.iid(0.0, 10, 20, 3)}, 0.1)[0]
    assert row.best_k == 0
    assert row.expected.value == row.speedup.value == 1.0
    assert row.alpha[0].value == 0
    assert all(np.isnan(estimate.value) for estimate in row.alpha[1:])
    assert json_data(row)["alpha"][1] == {"value": None, "low": None, "high": None}
    assert texts(drafter_frame([row]))[0][6:9] == ("-", "-", "-")


@pytest.fixture
def mixed(tmp_path):
    """A bundled recording, and the same 4 deep without features."""
    name = next(name for name in recordings() if name.startswith("tiny-early_exit-coupled"))
    trace = load_trace(recordings()[name])
    trace = trace.select(range(0, trace.sequences, 12))
    frame = {"whole": trace, "silent": shallow(trace, 4, features=False)}
    for name, part in frame.items():
        part.save(tmp_path / f"{name}.parquet")
    return [tmp_path / f"{name}.parquet" for name in frame]


def recording_and_policy(out):
    return [
        (row["trace"].split("/")[-1].split(".")[0], row["policy"])
        for row in json.loads(out)["rows"]
    ]


def test_sweep_leaves_out_unservable_policies_with_notes(mixed, capsys):
    policies = [
        f"--policy={text}" for text in ("fixed:6", "confidence:0.5", "cost_ts:K=8", "fixed:1")
    ]
    code, out, err = run(capsys, "sweep", *mixed, *policies, *ONCE)
    names = [name for _, name in recording_and_policy(out)][:4]
    assert code == 0
    assert recording_and_policy(out) == [
        *(("whole", name) for name in names),
        ("silent", "fixed:1"),
    ]
    notes = err.splitlines()
    assert len(notes) == 3
    assert all(
        line.startswith("simspec: ") and "left out on" in line and "silent.parquet" in line
        for line in notes
    )
    assert "drafts up to 6, here drafts reach 4" in notes[0]
    assert "feature 'confidence' is not in this trace" in notes[1]
    # each that ran gives what it gives alone
    alone = run(capsys, "sweep", mixed[0], *policies, *ONCE)[1]
    assert json.loads(out)["rows"][:4] == json.loads(alone)["rows"]


def test_policy_that_no_recording_serves_is_an_error(mixed, capsys):
    for paths, policy in (
        ([mixed[1]], "fixed:5"),
        ([mixed[1]], "confidence:0.5"),
        (mixed, "fixed:99"),
        (mixed, "nobody"),
    ):
        for report in ("gains", "oracle"):
            asked = ("--report", report, "--policy", policy, "--policy", "fixed:1", "--cost", 0.1)
            code, out, err = run(capsys, "sweep", *paths, *asked)
            assert code == 2
            assert out == ""
            assert err.count("\n") == 1
            assert "left out" not in err


def test_default_policies_run_everywhere_without_notes(mixed, capsys):
    code, out, err = run(capsys, "sweep", *mixed, *ONCE)
    assert code == 0
    assert err == ""
    full_policies, shallow_policies = (
        {policy for name, policy in recording_and_policy(out) if name == recording}
        for recording in ("whole", "silent")
    )
    assert shallow_policies < full_policies
    assert {"fixed:4", "beta_ts:acceptance", "cost_ts", "oracle"} <= shallow_policies
    assert "fixed:8" in full_policies - shallow_policies
    asked = ("--report", "oracle", *ONCE)
    code, out, err = run(capsys, "sweep", *mixed, *asked)
    rows = json.loads(out)["rows"]
    full_policies, shallow_policies = (
        {row["policy"] for row in rows if row["recording"] == str(path)} for path in mixed
    )
    assert code == 0
    assert err == ""
    assert shallow_policies < full_policies


def short_and_long():
    """Nine short prompts whose drafts fail, and one long one whose drafts are right."""
    lengths = np.array([4] * 9 + [400])
    trace = synthetic.iid(1.0, 1, int(lengths.sum()), 4)
    offset = np.concatenate(([0], np.cumsum(lengths)))
    left = np.repeat(offset[1:], lengths) - np.arange(trace.rows)
    run = np.where(np.arange(trace.rows) < offset[9], 0, np.minimum(4, left)).astype(np.uint8)
    tasks = ("hard",) * 9 + ("easy",)
    meta = replace(trace.meta, tasks=tasks, ids=tuple(map(str, range(10))))
    return replace(
        trace, offset=offset, budget=lengths, run=run, meta=meta, sequence=np.arange(10),
        prompt_offset=np.zeros(11, np.int64),
    )  # fmt: skip


def test_best_length_is_of_total_time_and_of_each_task():
    trace, cost = short_and_long(), CostModel.from_ratio(0.3, 4)
    rows = {row.task: row for row in compare_drafters({"x": trace}, cost, resamples=100)}
    times = [cost.seconds(replay(trace, fixed(k), cost=cost)).sum() for k in range(5)]
    assert rows[ALL].best_k == int(np.argmin(times)) == 4
    assert {task: row.best_k for task, row in rows.items()} == {ALL: 4, "hard": 0, "easy": 4}

"""Drafters side by side: figures from their definitions, and a command that says what it cannot do."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simspec import CostModel, synthetic
from simspec.cli import main
from simspec.lineup import ALL, by_depth, lineup, markdown


def recording(seed=0, prompts=12, K=4, rate=0.6):
    return synthetic.iid(rate, prompts, 40, K, seed=seed)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 99), st.integers(1, 6), st.floats(0.05, 0.95))
def test_acceptance_by_depth_is_its_definition(seed, K, rate):
    trace = recording(seed, 3, K, rate)
    held, tried = by_depth(trace)
    for s in range(trace.sequences):
        for j in range(1, K + 1):
            went = right = 0
            for t in range(trace.offset[s], trace.offset[s + 1]):
                room = min(trace.depth[t], trace.offset[s + 1] - t)
                if trace.run[t] >= j - 1 and room >= j:
                    went += 1
                    right += trace.run[t] >= j
            assert (held[s, j - 1], tried[s, j - 1]) == (right, went)


def test_on_iid_text_acceptance_is_the_rate_at_every_depth():
    """200 prompts: each alpha within 5 standard errors of 0.7, a false alarm of about 1e-6 a depth; so is its interval's middle."""
    trace = synthetic.iid(0.7, 200, 60, 5, seed=1)
    held, tried = (x.sum(0) for x in by_depth(trace))
    assert (abs(held / tried - 0.7) < 5 * np.sqrt(0.21 / tried)).all()
    (row,) = [row for row in lineup({"x": trace}, 0.1) if row["task"] == ALL]
    for alpha, h, t in zip(row["alpha"], held, tried):
        assert alpha["value"] == pytest.approx(h / t) and alpha["low"] < alpha["value"] < alpha["high"]


def test_a_row_is_what_its_keys_say():
    trace, cost = recording(), CostModel.from_ratio(0.2, 4)
    (row,) = [row for row in lineup({"x": trace}, {"x": cost}) if row["task"] == ALL]
    assert (row["drafter"], row["rule"], row["prompts"], row["tokens"]) == (trace.meta.drafter, trace.meta.rule, 12, trace.rows)
    assert row["c"] == pytest.approx(0.2)
    from simspec import replay
    from simspec.policies import fixed

    speed = [trace.rows * cost.baseline / cost.seconds(replay(trace, fixed(k))).sum() for k in range(5)]
    assert row["best_k"] == int(np.argmax(speed)) > 0
    assert row["speedup"]["value"] == pytest.approx(max(speed))
    alpha = [each["value"] for each in row["alpha"][: row["best_k"]]]
    expected = (1 + sum(np.prod(alpha[:j]) for j in range(1, len(alpha) + 1))) / (0.2 * row["best_k"] + 1)
    assert row["expected"]["value"] == pytest.approx(expected)
    for key in ("speedup", "expected"):
        assert row[key]["low"] < row[key]["value"] < row[key]["high"]


def test_domains_partition_the_prompts_and_few_prompts_get_no_interval():
    trace = recording()
    trace = replace(trace, meta=replace(trace.meta, tasks=("a",) * 9 + ("b",) * 3))
    everything, a, b = lineup({"x": trace}, 0.1)
    assert [row["task"] for row in (everything, a, b)] == [ALL, "a", "b"]
    assert everything["tokens"] == a["tokens"] + b["tokens"] and (a["prompts"], b["prompts"]) == (9, 3)
    assert a["speedup"]["low"] is not None and b["speedup"]["low"] is None and b["speedup"]["value"] > 0


def test_a_drafter_that_is_never_right_is_best_not_asked():
    row = lineup({"x": synthetic.iid(0.0, 10, 20, 3)}, 0.1)[0]
    assert row["best_k"] == 0 and row["expected"]["value"] == row["speedup"]["value"] == 1.0
    assert row["alpha"][0]["value"] == 0 and row["alpha"][1:] == [None, None]
    assert "| - |" in markdown([row])


def run(capsys, *arguments):
    try:
        main([str(a) for a in arguments])
        code = 0
    except SystemExit as stop:
        code = stop.code
    return (code, *capsys.readouterr())


@pytest.fixture
def files(tmp_path):
    made = {"deep": recording(1), "flat": recording(2, K=2)}
    for name, trace in made.items():
        trace.save(tmp_path / f"{name}.parquet")
    return tmp_path


def test_the_command_prints_rows_for_machines_and_people(files, capsys):
    code, out, _ = run(capsys, "drafters", files / "deep.parquet", files / "flat.parquet", "--cost", 0.1, "--json")
    rows = json.loads(out)["drafters"]
    assert code == 0 and {row["recording"] for row in rows} == {str(files / "deep.parquet"), str(files / "flat.parquet")}
    assert "alpha" in rows[0] and len(rows[0]["alpha"]) == 4
    code, out, _ = run(capsys, "drafters", files / "deep.parquet", "--cost", 0.1, "--markdown", "--depth", 2)
    assert code == 0 and out.splitlines()[0].count("|") == 10
    assert run(capsys, "drafters", files / "deep.parquet", "--by-task")[0] == 0
    for bad, said in ((("--depth", 0), "--depth is 0"), (("--cost", "nowhere.json"), "nowhere.json")):
        code, _, err = run(capsys, "drafters", files / "deep.parquet", *bad)
        assert code == 2 and said in err and len(err.strip().splitlines()) == 1
    assert run(capsys, "drafters", "nosuch")[0] == 2


def test_a_sweep_over_several_recordings_leaves_out_what_one_cannot_serve(files, capsys):
    both = files / "deep.parquet", files / "flat.parquet"
    code, out, err = run(capsys, "sweep", *both, "--policy", "fixed:4", "--policy", "fixed:1", "--json")
    assert code == 0 and "fixed:4 left out on" in err and "K = 2 is less than its 4" in err
    assert {(row["trace"].split("/")[-1], row["policy"]) for row in json.loads(out)["rows"]} == {
        ("deep.parquet", "fixed:4"),
        ("deep.parquet", "fixed:1"),
        ("flat.parquet", "fixed:1"),
    }
    # alone, or where none can serve it, it is an error as before
    for traces, policy in (([both[1]], "fixed:4"), (both, "fixed:9"), (both, "confidence:0.5")):
        code, _, err = run(capsys, "sweep", *traces, "--policy", policy)
        assert code == 2 and len(err.strip().splitlines()) == 1
    code, out, err = run(capsys, "sweep", *both, "--json")
    assert code == 0 and err == "" and {row["policy"] for row in json.loads(out)["rows"]} >= {"fixed:2", "beta_ts:acceptance", "oracle"}

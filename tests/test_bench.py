"""The benchmark's hand-written and vectorised forms make the same rounds as `replay`; nothing
here looks at a clock.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parents[1] / "tools" / "bench"
sys.path.insert(0, str(BENCH))
import history  # noqa: E402
import replay as bench  # noqa: E402
import revision  # noqa: E402
import sweep  # noqa: E402

from simspec import CostModel, replay, synthetic  # noqa: E402

TRACES = [synthetic.iid(0.7, 9, 60, 16, seed=seed, confidence=True) for seed in (1, 2)]
COST = CostModel.from_ratio(0.1, 16)
CASES = [case for case in bench.cases(TRACES, COST) if not isinstance(case[0], list)]


def test_the_sweep_takes_the_bundled_recordings_that_have_costs():
    """Those that only engines run have none: they stopped the whole benchmark, not the small."""
    taken = {file for file, _ in sweep.priced()}
    assert all(cost.is_file() for _, cost in sweep.priced())
    assert {file.parent.name for file in taken} == {"traces", "greedy", "coupled", "rejection"}
    assert set(sweep.TRACES.glob("smollm2/engines/*.parquet"))


@pytest.mark.parametrize(
    "policy, limit, vectorised", CASES, ids=[policy.name for policy, _, _ in CASES]
)
@pytest.mark.parametrize("seed", [0, 5])
def test_every_form_makes_the_same_rounds(policy, limit, vectorised, seed):
    for trace in TRACES:
        expected = replay(trace, policy, seed, COST).row
        if limit:
            out = np.zeros(trace.rows, np.int64)
            np.testing.assert_array_equal(out[: limit(trace, seed, out)], expected)
        if vectorised:
            np.testing.assert_array_equal(vectorised(trace, seed), expected)
        outputs = bench.buffers(trace)
        bench.loop(trace, policy, COST, seed, outputs)()
        np.testing.assert_array_equal(outputs[1][: outputs[0][-1]], expected)


def test_signals_through_memory_make_the_same_rounds():
    trace = TRACES[0]
    out, shown = np.zeros(trace.rows, np.int64), np.full((16, 1), np.nan)
    arrays = trace.offset, trace.run, trace.feature[:, :, 0], bench.LOG_ODDS
    count = bench.forms.leave_through_memory(*arrays, 0.4, 16, shown, out)
    expected = replay(trace, bench.confidence(0.4), 0, COST).row
    np.testing.assert_array_equal(out[:count], expected)


def test_the_command_prints_one_object(tmp_path, monkeypatch, capsys):
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps({"ratios": {"beta_draw": 1e-6}}) + "\n")
    options = ("--small", "--repetitions", "2", "--history", str(path))
    monkeypatch.setattr(sys, "argv", ["replay.py", *options])
    bench.main()  # here, where the policies are compiled
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert len(report["policies"]) == len(CASES) + 1
    fixed = next(row for row in report["policies"] if row["policy"] == "fixed:3")
    assert (
        min(fixed["ns_per_round"], fixed["over_limit"], fixed["under_numpy"], fixed["under_twin"])
        > 0
    )
    assert report["sweep"]["policies"] == 7
    assert report["sweep"]["first_result_s"] <= report["sweep"]["all_s"]
    assert report["sweep"]["bundled"]["simulated"] > report["sweep"]["bundled"]["tokens"]
    assert report["profile"]["clipped_mean_of_cali_ts_ns"] > 0
    assert report["profile"]["beta_draw_of_cost_ts_ns"] > 0
    assert [row["ratio"] for row in report["ratios"] if row["slower"]] == ["beta_draw"]
    assert "slower" in printed.err


ROW = {"policy": "fixed:3", "ns_per_round": 6.0, "over_limit": 1.2}
REPORT = {
    "policies": [ROW, {"policy": "cost_ts", "ns_per_round": 300.0, "over_limit": None}],
    "profile": {"beta_draw_of_cost_ts_ns": 100.0},
    "sweep": {"first_result_s": 0.6, "import_numba_s": 0.3, "bundled": {"ns_per_token": 90.0}},
}


def test_revisions_are_compared_by_turn():
    before = [{"a": [4.0, 2], "b": [1.0, 1]}, {"a": [8.0, 2], "b": [1.0, 1]}]
    now = [{"a": [2.0, 2], "b": [1.0, 1]}, {"a": [2.0, 2], "b": [4.0, 1]}]
    found = revision.report(before, now)
    assert found["policies"]["a"] == {"before_ns": 3e9, "now_ns": 1e9, "times": 3.0}
    assert found["policies"]["b"]["times"] == 0.62
    assert (found["before_s"], found["now_s"], found["times"]) == (7.0, 4.5, 1.58)


def test_ratios_are_over_figures_of_the_same_run():
    assert history.ratios(REPORT) == {
        "limit:fixed:3": 1.2, "chase:cost_ts": 60.0, "beta_draw": 20.0, "sweep": 18.0,
        "first_result": 2.0,
    }  # fmt: skip


def test_ratios_compare_with_the_median_of_earlier_runs():
    earlier = [{"ratios": {"a": value, "b": 2.0}} for value in (1.0, 1.1, 9.0)]
    rows = {row["ratio"]: row for row in history.compared({"a": 1.2, "b": 2.7, "c": 5}, earlier)}
    assert (rows["a"]["usual"], rows["a"]["slower"]) == (1.1, False)
    assert (rows["b"]["times"], rows["b"]["slower"]) == (1.35, True)
    assert (rows["c"]["usual"], rows["c"]["slower"]) == (None, False)
    assert history.table(list(rows.values())).count("slower") == 1


def test_history_is_appended_and_read(tmp_path):
    path = tmp_path / "history.jsonl"
    assert history.read(path) == []
    for value in (1.0, 2.0):
        history.append(path, {"python": "3"}, {"a": value})
    assert [run["ratios"]["a"] for run in history.read(path)] == [1.0, 2.0]
    path.write_text(path.read_text() + '{"ratios": 3}\n')
    with pytest.raises(ValueError, match="line 3: no run of this benchmark: remove it"):
        history.read(path)


def test_history_of_the_repository_is_readable():
    names = set(history.ratios(REPORT))
    for run in history.read(BENCH / "history.jsonl"):
        assert names & set(run["ratios"])

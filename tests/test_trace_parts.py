"""Parts of a recording hold what it holds, and a sweep over them gives the same table."""

import json
from dataclasses import replace

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inputs import small_recording, with_fields
from shell import refused, run
from strategies import costs, nosy, traces

from simspec import DeferredPolicy, PolicyError, TraceError, load_trace, sweep, synthetic
from simspec.policies import beta_ts, ema_tiers, fixed, greedy_oracle, hf_heuristic, oracle
from simspec.replay.parts import part_sweep
from simspec.trace import parts as module
from simspec.trace.parts import trace_parts

EXAMPLES = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
POLICIES = [fixed(1), beta_ts(), hf_heuristic(1), ema_tiers(), oracle, greedy_oracle]
POLICIES += [nosy(), nosy("stream")]


@EXAMPLES
@given(trace=traces(), rows=st.integers(1, 45), batch=st.integers(1, 8))
def test_parts_are_the_sequences_in_order(tmp_path, monkeypatch, trace, rows, batch):
    monkeypatch.setattr(module, "BATCH", batch)
    trace.save(tmp_path / "t.parquet")
    parts, first = list(trace_parts(tmp_path / "t.parquet", rows)), 0
    for part in parts:
        assert part == trace.select(range(first, first + part.sequences))
        assert part.rows <= rows or part.sequences == 1
        first += part.sequences
    assert first == trace.sequences
    pairs = zip(parts, parts[1:])
    assert all(a.rows + np.diff(b.offset)[0] > rows for a, b in pairs), "parts are as large as fits"


@EXAMPLES
@given(
    trace=traces(optional=False),
    cost=costs(),
    rows=st.integers(6, 30),
    by=st.sampled_from(["trace", "task", "prompt"]),
)
def test_table_is_that_of_the_whole_recording(tmp_path, trace, cost, rows, by):
    path = tmp_path / "t.parquet"
    trace.save(path)
    expected = sweep(str(path), POLICIES, cost, 2, by=by, progress=False)
    table = pandas.DataFrame(part_sweep(path, POLICIES, cost, 2, by=by, rows=rows))
    pandas.testing.assert_frame_equal(table, expected, check_exact=True)


@pytest.mark.parametrize("by", ["trace", "task", "prompt"])
def test_sums_of_seconds_go_on_where_they_were(tmp_path, by):
    """Seconds whose sum depends on the order, names that prompts share, and a tree."""
    trace, path = synthetic.iid(0.7, 40, 30, 5, confidence=True), tmp_path / "t.parquet"
    meta = replace(trace.meta, ids=("same",) * 40, tasks=("a", "b", "b", "c") * 10)
    rank = np.where(np.arange(5) < trace.run[:, None], 0, 1).astype(np.uint8)
    with_fields(trace, meta=meta, rank=rank).save(path)
    listed = [beta_ts(), "cost_ts:scope=stream", hf_heuristic(2), "oracle", "static:2x1"]
    expected = sweep(str(path), listed, 0.137, 3, by=by, progress=False)
    table = pandas.DataFrame(part_sweep(path, listed, 0.137, 3, by=by, rows=100))
    pandas.testing.assert_frame_equal(table, expected, check_exact=True)


def test_control_fresh_state_in_each_part_gives_another_table(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    synthetic.iid(0.9, 12, 7, 5).save(path)
    expected = list(part_sweep(path, "hf_heuristic:1", rows=1000))
    assert list(part_sweep(path, "hf_heuristic:1", rows=7)) == expected
    from simspec.replay import parts as sweeping

    replays = sweeping.replays
    monkeypatch.setattr(sweeping, "replays", lambda *call: replays(*call[:4]))
    assert list(part_sweep(path, "hf_heuristic:1", rows=7)) != expected


def test_rejection_recordings_draw_alike(tmp_path):
    trace = synthetic.iid(0.6, 9, 20, 4)
    drawn = replace(trace.meta, rule="rejection", temperature=1.0)
    ratio = np.random.default_rng(0).random((trace.rows, 4)).astype(np.float32)
    run, path = np.zeros(trace.rows, np.uint8), tmp_path / "t.parquet"
    with_fields(trace, meta=drawn, ratio=ratio, run=run).save(path)
    expected = sweep(str(path), [fixed(2), beta_ts()], progress=False)
    rows = part_sweep(path, [fixed(2), beta_ts()], rows=50)
    pandas.testing.assert_frame_equal(pandas.DataFrame(rows), expected, check_exact=True)


@pytest.mark.parametrize(
    "policy",
    ["medusa_tree:4", "optimal_tree", "tree_oracle", DeferredPolicy("mine", lambda t, c: fixed(1)),
     lambda t, c: fixed(1)],
    ids=["medusa_tree", "optimal_tree", "tree_oracle", "deferred", "function"],
)  # fmt: skip
def test_policies_planned_from_all_rows_are_refused(tmp_path, policy):
    small_recording().save(tmp_path / "t.parquet")
    with pytest.raises(PolicyError, match="is planned from the whole recording: leave it out"):
        part_sweep(tmp_path / "t.parquet", [fixed(1), policy])


def _opened_with(monkeypatch):
    """Numbers of rows that pyarrow decodes at a time, as they are asked for."""
    asked, batches = [], pq.ParquetFile.iter_batches
    monkeypatch.setattr(pq.ParquetFile, "read", None)

    def counted(self, batch_size, *arguments, **options):
        asked.append(batch_size)
        return batches(self, batch_size, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    return asked


def test_rows_are_decoded_in_batches_and_never_all_at_once(tmp_path, monkeypatch):
    trace = synthetic.iid(0.7, 30, 10, 3)
    trace.save(tmp_path / "t.parquet")
    monkeypatch.setattr(module, "BATCH", 16)
    asked = _opened_with(monkeypatch)
    assert [part.rows for part in trace_parts(tmp_path / "t.parquet", 100)] == [100, 100, 100]
    assert set(asked) == {16}
    with pytest.raises(TraceError):
        load_trace(tmp_path / "t.parquet")


def _changed_file(path, change):
    small_recording().save(path)
    with pq.ParquetFile(path) as file:
        table, extra = file.read(), json.loads(file.metadata.metadata[b"simspec"])
    changed = change(table, extra)
    table = changed if isinstance(changed, pyarrow.Table) else table
    with pq.ParquetWriter(path, table.schema) as file:
        file.write_table(table, row_group_size=5)
        file.add_key_value_metadata({"simspec": json.dumps(extra)})
    return path


def test_row_groups_of_any_size_are_read(tmp_path):
    path = _changed_file(tmp_path / "t.parquet", lambda table, extra: None)
    (whole,) = trace_parts(path, 10**9)
    assert whole == small_recording()


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda table, extra: extra.update(sha256="0" * 64), "does not match its hash"),
        (lambda table, extra: extra.update(budget=extra["offset"]), "expected one per sequence"),
        (lambda table, extra: table.slice(1), r"offset runs 0\.\."),
        (lambda table, extra: table.drop_columns(["run"]), "does not match its hash"),
        (lambda table, extra: extra.pop("prompt"), "'prompt' is missing or unknown"),
    ],
    ids=["hash", "tables", "rows", "column", "table"],
)
def test_damaged_files_are_refused_before_the_first_part(tmp_path, change, words):
    path = _changed_file(tmp_path / "t.parquet", change)
    with pytest.raises(TraceError, match=words) as error:
        next(trace_parts(path, 10))
    assert str(error.value).startswith(f"{path}: not a readable trace: ")


def test_parts_of_no_rows_are_refused(tmp_path):
    with pytest.raises(ValueError, match="parts of 0 rows, expected at least 1"):
        next(trace_parts(tmp_path / "t.parquet", 0))


def test_one_option_prints_the_same_table(tmp_path, capsys):
    for name in "ab":
        synthetic.iid(0.6, 5, 40, 4, seed=ord(name), confidence=True).save(tmp_path / name)
    command = ("sweep", tmp_path / "a", tmp_path / "b", "--json")
    code, whole, _ = run(capsys, *command)
    assert code == 0
    code, parts, err = run(capsys, *command, "--part-rows", 90)
    assert (code, err) == (0, "")
    assert json.loads(parts) == json.loads(whole)


def test_options_that_need_the_whole_recording_are_refused(tmp_path):
    synthetic.iid(0.6, 2, 9, 2).save(tmp_path / "a.parquet")
    options = "--part-rows", "5", "--jobs", "2"
    refused(tmp_path, "sweep", "a.parquet", *options, words="--part-rows goes without --keep")
    options = "--part-rows", "5", "--policy", "optimal_tree"
    refused(tmp_path, "sweep", "a.parquet", *options, words="is planned from the whole recording")

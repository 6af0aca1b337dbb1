"""Files of every released schema are read as they were meant."""

import json
from dataclasses import replace

import numpy as np
import pytest
from documents import ROOT
from write_goldens import GOLDENS, contents

from simspec import load_trace
from simspec.cost.table import load_cost
from simspec.trace.acceptance import drawn_run
from simspec.trace.file import RULES, SAMPLED, SCHEMA, TraceError, TraceMeta, opened

RECORDINGS = sorted(GOLDENS.glob("recording-*.parquet"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recording_reads_as_written_and_replays_alike(path, tmp_path):
    trace = load_trace(path)
    assert contents(trace) == json.loads(path.with_suffix(".json").read_text())
    trace.save(tmp_path / "again.parquet")
    assert load_trace(tmp_path / "again.parquet") == trace


def test_todays_schema_has_a_golden_of_every_recorded_rule():
    """A new schema needs new files: python tests/write_goldens.py; the old ones stay."""
    names = {path.stem for path in RECORDINGS}
    assert {f"recording-{SCHEMA}-{rule}" for rule in RULES if rule != "synthetic"} <= names


def test_ratios_capped_at_1_refuse_a_block_and_others_serve_both_rules():
    older, block = (load_trace(GOLDENS / f"recording-2-{rule}.parquet") for rule in SAMPLED)
    with pytest.raises(TraceError, match="largest_ratio is 1.0, expected ratios above 1 too"):
        older.under("block")
    assert block.under("rejection").under("block") == block
    assert drawn_run(block, 1).tolist() != drawn_run(block.under("rejection"), 1).tolist()


@pytest.mark.parametrize("name", ["cost-model", "cost-replicates", "cost-table"])
def test_cost_reads_as_written(name, tmp_path):
    path = GOLDENS / f"{name}.json"
    load_cost(path).to_json(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(path.read_text())


def test_control_a_changed_run_is_noticed():
    trace = load_trace(GOLDENS / f"recording-{SCHEMA}-coupled.parquet")
    run = trace.run.copy()
    run[np.flatnonzero(run)[0]] -= 1
    other = replace(trace, run=run, meta=replace(trace.meta, prefix_only=False))
    assert contents(other)["rounds"] != contents(trace)["rounds"]


def test_metadata_of_bundled_recordings_is_written_as_it_was_read():
    files = [path for path in (ROOT / "traces").rglob("*.parquet") if ".exits" not in path.name]
    for path in files:
        with opened(path) as (_, extra):
            assert TraceMeta.from_json(extra["meta"]).to_json() == extra["meta"], path
    assert len(files) > 40

"""Runs without a cost file, where the recording is deeper than what the drafter can draft."""

import json

import pytest
from shell import simspec

from real.measure import MeasureSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recording of Medusa's four heads to depth 6."""
    path = tmp_path_factory.mktemp("depth")
    row = {"id": "a", "task": "code", "text": "def add(a, b):"}
    (path / "prompts.jsonl").write_text(json.dumps(row) + "\n")
    size = ("-k", 6, "--budget", 8)
    record = ("record", "prompts.jsonl", "--drafter", "medusa", *size, "--out", "deep.parquet")
    simspec(*record, cwd=path)
    return path


pytestmark = pytest.mark.usefixtures("few_replicates", "any_seconds")


def test_costs_are_measured_to_what_the_drafter_offers(folder, monkeypatch):
    def short(**given):
        return MeasureSettings(**given | {"context": (16,), "repeats": 1})

    monkeypatch.setattr("real.measure.MeasureSettings", short)
    asked = ("run", "deep.parquet", "--policy", "fixed:6", "--json")
    compare = ("--compare", "--rival", "none", "--repeats", 1)
    out, error = simspec(*asked, *compare, cwd=folder)
    assert "measuring costs" in error
    assert {row["contestant"]: row["equal"] for row in json.loads(out)["rows"]} == {
        "plain": 1, "fixed:6": 1
    }  # fmt: skip
    out, error = simspec(*asked, cwd=folder)
    assert "measuring" not in error
    assert json.loads(out)["replay_equal"]
    assert json.loads(out)["rounds_compared"] > 0


def test_lookahead_runs_deeper_than_its_ngrams(folder):
    lookahead = ("--drafter", "lookahead", "--policy", "fixed:6")
    out, _ = simspec("run", "deep.parquet", *lookahead, "--json", cwd=folder)
    assert json.loads(out)["lossless"]

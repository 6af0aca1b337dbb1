"""The benchmark of recording runs, and its ways record the same."""

import json
import runpy
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "tools" / "bench" / "record.py"


def test_benchmark_reports_both_ways(tmp_path, monkeypatch, capsys):
    out = tmp_path / "b.json"
    command = [BENCH, "--sequences", 3, "--budget", 4, "--depth", 2, "--repeats", 1]
    options = ["--drafter", "medusa", "--drafter", "prompt_lookup", "--threads", 1, "--out", out]
    monkeypatch.setattr(sys, "argv", [*map(str, command), *map(str, options)])
    runpy.run_path(str(BENCH), run_name="__main__")
    report = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == report
    assert report["drafters"] == ["medusa", "prompt_lookup"]
    assert [run["tokens"] for run in report["single"]] == [
        run["tokens"] for run in report["batched"]
    ]
    assert report["ratio"]["least"] <= report["ratio"]["median"] <= report["ratio"]["largest"]
    assert report["failures"] == 0

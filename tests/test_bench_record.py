"""The benchmark of recording runs, and its ways record the same."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "tools" / "bench" / "record.py"


def test_benchmark_reports_both_ways(tmp_path):
    out = tmp_path / "b.json"
    command = [sys.executable, BENCH, "--sequences", 3, "--budget", 4, "--depth", 2, "--repeats", 1]
    options = ["--drafter", "medusa", "--drafter", "prompt_lookup", "--threads", 1, "--out", out]
    ran = subprocess.run(
        [*map(str, command), *map(str, options)], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(out.read_text())
    assert json.loads(ran.stdout) == report
    assert report["drafters"] == ["medusa", "prompt_lookup"]
    assert [run["tokens"] for run in report["single"]] == [
        run["tokens"] for run in report["batched"]
    ]
    assert report["ratio"]["least"] <= report["ratio"]["median"] <= report["ratio"]["largest"]
    assert report["failures"] == 0

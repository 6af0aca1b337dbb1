"""Published speeds: their files, errors as computed before, and controls that must fail."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shell import refused, run

from simspec.cost.fit import leave_one_length_out
from simspec.cost.speed_table import SpeedRow, SpeedTable
from simspec.published import FOLDER, length_curves, published_table, speed_tables
from simspec.validation import published_costs as checks
from simspec.validation.published_costs import CHECKED, leave_one_task_out, published_costs

ROOT = Path(__file__).parent.parent

# (tables, what was predicted): number of speedups, median, 90th percentile, worst.
ERRORS = {
    ("SpecBundle, all", "K between the ends"): (87, 0.0074, 0.0539, 0.0660),
    ("SpecBundle, all", "a task left out"): (263, 0.0442, 0.1815, 0.8355),
    ("SpecBundle, batch 1", "K between the ends"): (14, 0.0020, 0.0041, 0.0049),
    ("SpecBundle, batch 1", "a K left out"): (42, 0.0058, 0.0142, 0.0543),
    ("SpecBundle, batch 1", "a task left out"): (42, 0.0064, 0.0130, 0.0569),
    ("vllm-20780-eagle1", "K between the ends"): (4, 0.0060, 0.0079, 0.0087),
    ("vllm-20780-eagle1", "a K left out"): (6, 0.0053, 0.0091, 0.0112),
    ("vllm-20780-eagle3", "K between the ends"): (4, 0.0237, 0.0349, 0.0395),
    ("vllm-20780-eagle3", "a K left out"): (6, 0.0164, 0.0349, 0.0379),
    ("draft-length-audit", "K between the ends"): (9, 0.0077, 0.0137, 0.0138),
    ("draft-length-audit", "a K left out"): (15, 0.0091, 0.0172, 0.0195),
    ("draft-length-audit", "a task left out"): (15, 0.0058, 0.0148, 0.0164),
}


@pytest.mark.parametrize("group, measure", ERRORS)
def test_errors_are_as_computed_before(group, measure):
    (result,) = (
        result
        for result in published_costs()["errors"]
        if (result["group"], result["measure"]) == (group, measure)
    )
    count, *expected = ERRORS[group, measure]
    assert result["count"] == count
    found = [result[name] for name in ("median", "p90", "worst")]
    assert found == pytest.approx(expected, abs=6e-5)


# Mean round cost in plain steps, by K.
COSTS = {
    "vllm-20780-eagle1": {2: 1.298, 3: 1.390, 4: 1.514, 5: 1.619, 6: 1.712, 7: 1.817},
    "vllm-20780-eagle3": {2: 1.442, 3: 1.614, 4: 1.764, 5: 1.939, 6: 2.055, 7: 2.148},
    "draft-length-audit": {1: 1.07, 2: 1.12, 3: 1.21, 5: 1.35, 7: 1.48},
    "ik-llama-2156": {1: 1.49, 2: 1.92, 3: 2.31},
    "llama-cpp-22673": {1: 1.57, 2: 2.05, 3: 2.59, 4: 3.14},
    "specbundle/Llama-3.1-8B-Instruct-SpecForge": {3: 1.373, 5: 1.503, 7: 1.638},
}


@pytest.mark.parametrize("name", COSTS)
def test_round_costs_are_as_computed_before(name):
    (facts,) = (facts for facts in published_costs()["tables"] if facts["name"] == name)
    assert facts["round_cost"] == pytest.approx(COSTS[name], abs=6e-3)


def test_a_published_cell_is_as_printed():
    table = published_table("specbundle/Llama-3.1-8B-Instruct-SpecForge")
    row = next(row for row in table.rows if (row.task, row.K) == ("math500", 5))
    assert row.accepted_length == pytest.approx(4.625, abs=5e-4)
    assert row.speedup == pytest.approx(3.112, abs=5e-4)
    assert row.plain_step == pytest.approx(1 / 191, abs=1e-5)


def test_all_limits_hold(capsys):
    code, out, err = run(capsys, "check", "--published", "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert data["ok"]
    assert {row["group"] for row in data["errors"] if row["limit"]} == set(CHECKED)
    assert len(data["tables"]) == len(speed_tables())


def changed(name, cost_of):
    """The published tables, one with the round cost cost_of(row)."""
    table = speed_tables()[name]
    rows = tuple(replace(row, speedup=row.accepted_length / cost_of(row)) for row in table.rows)
    return dict(speed_tables()) | {name: replace(table, rows=rows)}


FAULTS = {
    "a K left out": lambda row: 1 + 0.03 * row.K**2,
    "a task left out": lambda row: (1 + 0.07 * row.K) * (1.1 if row.task == "gsm8k" else 1)
    * (0.9 if row.task == "mt_bench" else 1),
}  # fmt: skip


@pytest.mark.parametrize("measure", FAULTS)
def test_control_another_round_cost_fails(capsys, monkeypatch, measure):
    tables = changed("draft-length-audit", FAULTS[measure])
    monkeypatch.setattr(checks, "speed_tables", lambda: tables)
    code, out, _ = run(capsys, "check", "--published")
    assert code == 1
    assert f"FAILED draft-length-audit, {measure}" in out
    assert "NOT ALL LIMITS HOLD" in out


def test_control_the_true_round_cost_does_not_fail():
    report = published_costs(changed("draft-length-audit", lambda row: 1 + 0.07 * row.K))
    worst = {r["measure"]: r["worst"] for r in report["errors"] if r["group"] == CHECKED[-1]}
    assert worst == pytest.approx(dict.fromkeys(checks.MEASURES, 0), abs=1e-9)


lengths = st.floats(1, 2)
rows = st.builds(
    SpeedRow, st.sampled_from("abc"), st.integers(1, 5), lengths, st.floats(0.5, 2), st.just(0.0)
)


@given(st.lists(rows, min_size=1, max_size=12))
def test_leave_one_task_out_equals_the_slow_twin(found):
    expected = []
    for row in found:
        costs = sorted(
            r.accepted_length / r.speedup for r in found if r.task != row.task and r.K == row.K
        )
        if costs:
            expected.append(row.accepted_length / median(costs) / row.speedup - 1)
    assert leave_one_task_out(SpeedTable("t", tuple(found))) == pytest.approx(expected)


def test_a_length_left_out_is_not_used():
    table = published_table("vllm-20780-eagle3")
    errors = leave_one_length_out(table)
    spoiled = [replace(row, speedup=2.0) if row.K == 4 else row for row in table.rows]
    at_4 = [row.K for row in table.rows].index(4)
    again = leave_one_length_out(replace(table, rows=tuple(spoiled)))[at_4]
    assert (1 + again) * 2.0 == pytest.approx((1 + errors[at_4]) * table.rows[at_4].speedup)


def test_every_table_and_curve_names_its_source():
    texts = [
        *(table.texts for table in speed_tables().values()),
        *(c.texts for c in length_curves()),
    ]
    assert len(texts) > 40
    for of in texts:
        assert of["source"]
        assert of["caution"]


def test_files_are_in_the_package_and_their_licence_beside_them():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = config["tool"]["setuptools"]["package-data"]["simspec"]
    shipped = {path for pattern in patterns for path in (ROOT / "simspec").glob(pattern)}
    here = {path for path in FOLDER.iterdir() if path.suffix in (".json", ".md")}
    assert {path.name for path in here} == {
        "speed.json", "specbundle.json", "lengths.json", "batches.json", "gpu.json", "SOURCES.md",
        "tree-eagle-25.json", "tree-medusa-63.json",
    }  # fmt: skip
    assert here <= shipped
    sources = (FOLDER / "SOURCES.md").read_text(encoding="utf-8")
    assert "Copyright (c) 2025 sgl-project" in sources
    assert "Permission is hereby granted" in sources


@pytest.mark.parametrize("width", (60, 120, None))
def test_command_shows_every_table(capsys, monkeypatch, width):
    monkeypatch.setattr("simspec.output.terminal.terminal_width", lambda: width)
    code, out, _ = run(capsys, "check", "--published")
    assert code == 0
    for name in ("vllm-20780-eagle3", "SpecBundle, batch 1", "a task left out", "all limits hold"):
        assert name in out
    assert width is None or max(map(len, out.splitlines())) <= width


def test_published_with_a_recording_is_refused(tmp_path):
    refused(tmp_path, "check", "x.parquet", "--published", words="reads no recording")

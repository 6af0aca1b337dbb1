"""Every command that prints a speedup: planted lies are caught, honest costs pass."""

import json
from dataclasses import replace

import pytest
from cost_replicates import replicated
from pages import faults_of
from shell import command, refused
from tree_strategies import ranked

from simspec import CostModel, load_trace, sweep
from simspec.replay.evaluation import check_rows
from simspec.trace.recordings import CHECKOUT, recordings

from simspec import synthetic  # isort: skip

POLICY = ("--policy", "fixed:2")
COMMANDS = {
    "gains": ("sweep", "t.parquet", *POLICY),
    "gains by task": ("sweep", "t.parquet", *POLICY, "--by", "task"),
    "oracle": ("sweep", "t.parquet", "--report", "oracle", *POLICY),
    "differences": ("sweep", "t.parquet", "--report", "differences", *POLICY),
    "drafters": ("sweep", "t.parquet", "--report", "drafters"),
    "trees": ("sweep", "t.parquet", "--report", "trees", "--nodes", 4),
    "batch": ("sweep", "t.parquet", "--report", "batch", "-b", 1, "-b", 4),
    "report": ("report", "t.parquet", *POLICY, "--out", "page.html"),
    "tune": ("tune", "fixed", "t.parquet", "--trials", 16),
    "export": ("export", "vllm", "t.parquet", "--draft-model", "D", "--out", "v.json", *POLICY),
}
COUNTED = ("gains", "gains by task", "report")
HONEST = replicated(CostModel.from_ratio(0.1, 4, 63), R=8)


@pytest.fixture
def folder(tmp_path):
    """A recording, costs of which a round of two drafts is 0.45 plain steps, and flat ones."""
    trace = ranked(synthetic.iid(0.7, 32, 30, 4, seed=3), 1)
    trace = replace(trace, meta=replace(trace.meta, drafter="model"))
    trace.save(tmp_path / "t.parquet")
    cheap = HONEST.verify.copy()
    cheap[2] = 0.25
    replace(HONEST, verify=cheap, name="cheap").to_json(tmp_path / "cheap.json")
    drawn = HONEST.precision.replicates
    flat = replace(HONEST.precision, replicates={p: [v[0]] * 200 for p, v in drawn.items()})
    replace(HONEST, precision=flat, name="flat").to_json(tmp_path / "flat.json")
    HONEST.to_json(tmp_path / "honest.json")
    return tmp_path


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_cheap_cell_is_refused_in_one_line_and_nothing_is_written(folder, words):
    said = "a round of 2 drafts at 0.45 of a plain step; measure the costs again, idle"
    refused(folder, *words, "--cost", "cheap.json", words=said, code=1)


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_one_sample_a_cell_settles_nothing(folder, words):
    code, out, error = command(folder, *words, "--cost", "flat.json")
    assert code == 0, error
    page = folder / "page.html"
    text = out + error + (page.read_text() if page.exists() else "")
    assert "200 replicates that are all alike: one sample a cell" in text
    if words[0] == "report":
        assert "Not settled at costs" in text
        assert not [claim for claim in ("Draft 2", "Draft with") if claim in text]
    elif words[0] != "export":
        data = json.loads(command(folder, *words, "--cost", "flat.json", "--json")[1])
        rows = data["tables"][0]["rows"] if "tables" in data else data["rows"]
        for row in rows:
            for name in ("speedup", "gain", "difference", "share", "tuned"):
                held = row.get(name)
                assert not isinstance(held, dict) or held["low"] is held["high"] is None
            assert row.get("verdict", "") in ("", "not settled", "default kept")
    else:
        (row,) = json.loads((folder / "v.json.provenance.json").read_text())["predicted"]
        assert row["speedup"]["low"] is row["speedup"]["high"] is None
        assert "simspec: not confirmed at costs 'flat'" in error


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_without_costs_no_speedup_is_invented(folder, words):
    if words not in [COMMANDS[name] for name in COUNTED]:
        refused(folder, *words, words="has no costs, which speedups need: give --cost FILE")
        return
    code, out, error = command(folder, *words, "--policy", "cost_ts")
    page = folder / "page.html"
    text = out + (page.read_text() if page.exists() else "")
    assert (code, text.count("give --cost FILE")) == (0, 1)
    assert not [claim for claim in ("speedup over", "Draft 2", "Draft with") if claim in text]
    if words[0] == "sweep":
        assert error == "simspec: left out where there are no costs to plan with: cost_ts\n"
        rows = json.loads(command(folder, *words, "--json")[1])["rows"]
        assert all("speedup" not in row and row["committed_per_round"] > 1 for row in rows)


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_control_honest_costs_pass_and_the_table_names_them(folder, words):
    for cost, named in (("honest.json", "honest.json ("), ("0.08", "given ratio 0.08")):
        code, out, error = command(folder, *words, "--cost", cost)
        assert code == 0, error
        page = folder / "page.html"
        assert named in out + (page.read_text() if page.exists() else "")
        assert "settled" not in out + error


def test_a_recording_without_costs_beside_one_with_them(folder):
    load_trace(folder / "t.parquet").save(folder / "u.parquet")
    HONEST.to_json(folder / "u.cost.json")
    rows = json.loads(command(folder, "sweep", "t.parquet", "u.parquet", "--json")[1])["rows"]
    assert {(row["trace"], row["speedup"] is None) for row in rows} == {
        ("t.parquet", True), ("u.parquet", False),
    }  # fmt: skip
    assert command(folder, "report", "t.parquet", "u.parquet", "--out", "page.html")[0] == 0
    html = (folder / "page.html").read_text()
    assert faults_of(html) == []  # of a phone's width
    assert "t.parquet has no costs" in html
    assert "Modeled at the costs of u.cost.json" in html


def test_all_bundled_recordings_pass_at_their_own_costs():
    paths = {str(p): p for p in sorted(CHECKOUT.rglob("*.parquet"))} | recordings()
    priced = {name: p for name, p in paths.items() if p.with_suffix(".cost.json").is_file()}
    assert len(priced) > 25
    for name, path in priced.items():
        trace, cost = load_trace(path), CostModel.from_json(path.with_suffix(".cost.json"))
        lengths = [f"fixed:{k}" for k in range(min(trace.K, cost.K) + 1)]
        rows = sweep({name: trace}, lengths, cost, 1, progress=False).to_dict("records")
        check_rows(rows, {name: trace}, {name: cost})

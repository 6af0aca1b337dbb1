"""The command line: what commands print in every form, and what extras add."""

import json
import sys

import pandas
import pytest
from shell import refused, run
from tree_strategies import ranked

import simspec
from simspec import CostModel, cli, sweep, synthetic
from simspec.cli.sweep import sweep as sweep_command
from simspec.trace.recordings import recordings


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "a.parquet"
    synthetic.iid(0.7, 3, 40, 6, confidence=True).save(path)
    return path


def test_json_and_csv_hold_the_sweep(capsys, recording, tmp_path):
    names = [f"--policy={name}" for name in ("fixed:0", "fixed:2", "beta_ts")]
    written = ("--csv", tmp_path / "t.csv", "--cost", 0.1)
    code, out, err = run(capsys, "sweep", recording, *names, *written, "--json", "--replicates", 2)
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert (data["report"], data["seed"], data["covers"]) == ("gains", 0, ["prompts"])
    table = sweep(recording, ["fixed:0", "fixed:2", "beta_ts"], 0.1, replicates=2, progress=False)
    means = table.groupby("policy", sort=False).speedup.mean()
    assert {row["policy"]: row["speedup"] for row in data["rows"]} == pytest.approx(dict(means))
    assert out.count("NaN") == 0
    pandas.testing.assert_frame_equal(
        pandas.read_csv(tmp_path / "t.csv").drop(columns="trace"), table.drop(columns="trace")
    )


def test_every_report_is_one_table_in_every_form(capsys, tmp_path):
    path, policy = tmp_path / "a.parquet", ("--policy", "fixed:1")
    other = tmp_path / "b.parquet"
    ordered = ranked(synthetic.iid(0.6, 12, 20, 4, seed=3, confidence=True), 1)
    ordered.save(path)
    ordered.save(other)
    for report, options, column in (
        ("oracle", policy, "share"),
        ("differences", policy, "difference"),
        ("drafters", ("--k", 2), "expected"),
        ("trees", ("--nodes", 4), "tau"),
        ("routers", (other,), "gain"),
    ):
        words = ("sweep", path, "--report", report, "--cost", 0.1, *options)
        code, out, err = run(capsys, *words, "--json", "--csv", tmp_path / "t.csv")
        rows = json.loads(out)["rows"]
        assert code == 0, err
        written = pandas.read_csv(tmp_path / "t.csv")
        assert len(written) == len(rows)
        assert {f"{column}_low", f"{column}_high"} <= set(written.columns)
        assert column in rows[0]
        markdown = run(capsys, *words, "--markdown")[1].split("\n\n")[0].splitlines()
        assert len(markdown) == len(rows) + 2
        assert column in run(capsys, *words)[1]


def test_show_prints_the_contents(capsys, recording):
    code, out, _ = run(capsys, "report", "--show", recording)
    assert code == 0
    assert "mean_accepted_length" in out
    (shown,) = json.loads(run(capsys, "report", "--show", recording, "--json")[1])["rows"]
    assert (shown["sequences"], shown["K"], len(shown["accept_by_depth_at_K"])) == (3, 6, 6)


def test_bundled_recordings_have_names_and_costs(capsys):
    options = ("--policy", "fixed:1", "--replicates", 1, "--json")
    (row,) = json.loads(run(capsys, "sweep", "tiny-model-greedy", *options)[1])["rows"]
    cost = CostModel.from_json(recordings()["tiny-model-greedy"].with_suffix(".cost.json"))
    assert (row["trace"], row["cost"]) == ("tiny-model-greedy", cost.name)
    rows = json.loads(run(capsys, "sweep", *options)[1])["rows"]
    assert [row["trace"] for row in rows] == list(recordings())


def test_version_and_help(capsys):
    assert run(capsys, "--version")[:2] == (0, f"{simspec.__version__}\n")
    for name in ("sweep", "tune", "report", "policies"):
        code, out, _ = run(capsys, name, "--help")
        assert code == 0
        assert "Example" in out
    assert run(capsys, "swep")[0] == 2


def test_charts_without_matplotlib_name_the_extra(monkeypatch, recording, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = "charts need matplotlib: pip install 'simspec[plots]'"
    refused(tmp_path, "report", recording, words=words)


def test_a_command_of_an_extra_names_it(monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "_load_extras", lambda: ())
    known = [c for c in cli.app.registered_commands if c.name in cli.NAMES]
    monkeypatch.setattr(cli.app, "registered_commands", known)
    refused(tmp_path, "record", "x", words="record needs models: pip install 'simspec[real]'")
    refused(tmp_path, "demo", words="demo needs models: pip install 'simspec[demo]'")


class Point:
    """An entry point as importlib.metadata gives them."""

    def __init__(self, name, load):
        self.name, self.load = name, load


def _absent():
    raise ModuleNotFoundError("No module named 'torch'", name="torch")


def _broken():
    raise RuntimeError("half\ninstalled")


def test_extras_add_commands_and_broken_ones_are_noted(capsys, recording, monkeypatch):
    import typer

    monkeypatch.setattr(cli, "app", typer.Typer(no_args_is_help=True))
    cli.app.command("sweep")(sweep_command)

    def register(app):
        @app.command()
        def record():
            """Record."""
            print("recorded")

    points = [Point("good", lambda: register), Point("real", _absent), Point("odd", _broken)]
    monkeypatch.setattr(cli, "entry_points", lambda group: points)
    # not what an earlier call has loaded
    monkeypatch.setattr(cli, "_load_extras", cli._load_extras.__wrapped__)
    assert run(capsys, "record")[1] == "recorded\n"
    assert run(capsys, "sweep", recording, "--policy", "fixed:1")[0] == 0
    text = " ".join(run(capsys, "--help")[1].split())
    assert "pip install 'simspec[real]'" in text
    assert "No module named 'torch'" in text
    assert "RuntimeError: half installed" in text


def test_help_without_extras_names_the_package():
    notes = cli.load_commands(cli.app, [])
    assert len(notes) == 1
    assert "pip install 'simspec[real]'" in notes[0]

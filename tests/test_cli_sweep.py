import json
import subprocess
import sys

import pytest
from shell import run

from simspec import CostModel, cli, synthetic


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "a.parquet"
    synthetic.iid(0.7, 3, 40, 6, confidence=True).save(path)
    return path


def test_json_is_one_object(capsys, recording):
    code, out, err = run(
        capsys,
        "sweep",
        recording,
        "--policy",
        "fixed:2",
        "--policy",
        "beta_ts",
        "--json",
        "--replicates",
        2,
    )
    data = json.loads(out)
    assert code == 0
    assert err == ""
    assert set(data) == {"seed", "replicates", "by", "rows"}
    assert [row["policy"] for row in data["rows"]] == ["fixed:2"] * 2 + ["beta_ts:acceptance"] * 2
    assert run(capsys, "sweep", recording, "--policy", "fixed:0", "--json")[1].count("NaN") == 0


def test_defaults_csv_plot_and_table(capsys, recording, tmp_path):
    code, out, _ = run(
        capsys,
        "sweep",
        recording,
        "--csv",
        tmp_path / "t.csv",
        "--plot",
        tmp_path / "t.png",
        "--by",
        "task",
    )
    assert code == 0
    assert "oracle" in out
    assert "fixed:6" in out
    assert "fixed:8" not in out
    assert (tmp_path / "t.csv").read_text().startswith("trace,group,policy,cost,replicate")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_cost_file_equals_its_ratio(capsys, recording, tmp_path):
    path = tmp_path / "cost.json"
    CostModel.from_ratio(0.3, 6).to_json(path)
    rows = [
        json.loads(
            run(capsys, "sweep", recording, "--policy", "fixed:2", "--json", "--cost", cost)[1]
        )["rows"][0]
        for cost in (path, "0.3")
    ]
    assert rows[0] == rows[1]


def test_show(capsys, recording):
    code, out, _ = run(capsys, "show", recording)
    assert code == 0
    assert "synthetic" in out
    assert "mean_accepted_length" in out
    report = json.loads(run(capsys, "show", recording, "--json")[1])
    assert report["sequences"] == 3
    assert report["K"] == 6
    assert len(report["accept_by_depth_at_K"]) == 6


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["sweep", "absent.parquet"], "no such file"),
        (["sweep", "tiny-modl-greedy"], "did you mean tiny-model-greedy?"),
        (["sweep", "{trace}", "--batch", "4"], "is a ratio, the same for every batch"),
        (["show", "absent.parquet"], "no such file"),
        (["sweep", "{trace}", "--policy", "fixd:3"], "no policy is named 'fixd'"),
        (["sweep", "{trace}", "--policy", "fixed:9"], "drafts up to 9"),
        (["sweep", "{trace}", "--cost", "absent.json"], "not a cost model"),
        (["sweep", "{trace}", "--cost=-1"], "cost ratio is -1"),
        (["sweep", "{trace}", "--cost", "nan"], "cost ratio is nan"),
        (["sweep", "{trace}", "--by", "token"], "by is 'token'"),
        (["sweep", "{trace}", "--replicates", "0"], "replicates is 0"),
        (["sweep", "{trace}", "--seed=-1"], "seed is -1"),
        (["sweep", "{trace}", "--out", "/nowhere/t.csv"], "nowhere"),
    ],
)
def test_user_error_is_one_line_and_exit_code_2(capsys, recording, arguments, words):
    code, out, err = run(capsys, *(argument.format(trace=recording) for argument in arguments))
    assert code == 2
    assert out == ""
    assert words in err
    assert err.startswith("simspec: ")
    assert err.count("\n") == 1


def test_usage_errors_exit_with_2(capsys):
    assert run(capsys, "swep")[0] == 2
    assert run(capsys, "show")[0] == 2


def test_help_has_examples(capsys):
    for arguments in (["--help"], ["sweep", "--help"], ["show", "--help"], ["drafters", "--help"]):
        code, out, _ = run(capsys, *arguments)
        assert code == 0
        assert "simspec " in out
        assert "Example" in out


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
    cli.app.command("sweep")(cli.sweep.sweep)

    def register(app):
        @app.command()
        def record():
            """Record."""
            print("recorded")

    points = [Point("good", lambda: register), Point("real", _absent), Point("odd", _broken)]
    monkeypatch.setattr(cli, "entry_points", lambda group: points)
    monkeypatch.setattr(
        cli, "_load_extras", cli._load_extras.__wrapped__
    )  # not what an earlier call has loaded
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


def test_module_runs_in_a_subprocess(recording):
    command = [
        sys.executable,
        "-m",
        "simspec.cli",
        "sweep",
        str(recording),
        "--policy",
        "fixed:2",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert len(json.loads(done.stdout)["rows"]) == 4


def test_streamed_rows_equal_json_rows(capsys, recording):
    lines = run(
        capsys,
        "sweep",
        recording,
        "--policy",
        "fixed:0",
        "--policy",
        "beta_ts",
        "--stream",
        "--replicates",
        2,
    )[1].splitlines()
    whole = json.loads(
        run(
            capsys,
            "sweep",
            recording,
            "--policy",
            "fixed:0",
            "--policy",
            "beta_ts",
            "--json",
            "--replicates",
            2,
        )[1]
    )
    assert [json.loads(line) for line in lines] == whole["rows"]


def test_bundled_recordings_have_names_and_costs(capsys):
    from simspec.trace.recordings import recordings

    out = run(
        capsys, "sweep", "tiny-model-greedy", "--policy", "fixed:1", "--replicates", 1, "--json"
    )[1]
    (row,) = json.loads(out)["rows"]
    cost = CostModel.from_json(recordings()["tiny-model-greedy"].with_suffix(".cost.json"))
    assert row["trace"] == "tiny-model-greedy"
    assert row["cost"] == cost.name
    rows = json.loads(run(capsys, "sweep", "--policy", "fixed:1", "--replicates", 1, "--json")[1])[
        "rows"
    ]
    assert [row["trace"] for row in rows] == list(recordings())
    assert json.loads(run(capsys, "show", "tiny-model-greedy", "--json")[1])["K"] == 16

"""The campaign's command: options, inputs and results that it refuses, and the way to continue."""

import subprocess
import sys

import pytest
from toy_campaign import APP
from typer.testing import CliRunner

from real.campaign import __main__ as campaign
from real.campaign import report
from real.campaign.config import TOY
from real.campaign.scheduler import advance
from real.campaign.stages import stages
from real.campaign.workspace import Workspace


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "text.txt").write_text("the target disposes of what the drafter proposes " * 40)
    (tmp_path / "p.jsonl").write_text('{"task": "t", "text": "some words"}\n')
    return tmp_path


def call(inputs, *options):
    """(exit code, stdout, stderr) of a campaign's call there that has no time for any part."""
    arguments = [
        "--toy",
        "--device",
        "cpu",
        "--text",
        inputs / "text.txt",
        "--prompts",
        inputs / "p.jsonl",
        "--out",
        inputs / "out",
    ]
    done = CliRunner().invoke(APP, list(map(str, [*arguments, "--limit", 1e-9, *options])))
    return done.exit_code, done.stdout, done.stderr


def test_invalid_limit_device_and_seed_are_refused(inputs):
    assert call(inputs, "--limit", "0")[0] == 2
    assert call(inputs, "--device", "tpu")[0] == 2
    code, out, _ = call(inputs, "--limit", "0.001")
    assert code == 0
    assert "complete: no" in out
    assert "next call: " in out
    assert call(inputs, "--limit", "0.001", "--seed", "3")[0] == 2


def test_module_has_a_command_line():
    result = subprocess.run(
        [sys.executable, "-m", "real.campaign", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--limit" in result.stdout
    assert "--results" in result.stdout


@pytest.mark.parametrize(
    "prompts, words",
    [
        (None, "cannot be read as prompts"),
        (b"", "holds no prompt"),
        (b"{broken", "line 1: expected a JSON object"),
        (b'{"task": "t"}', "line 1: expected a JSON object"),
        (b'{"task": "t", "text": 5}', "line 1: expected a JSON object"),
        (b"caf\xe9", "cannot be read as prompts"),
    ],
)
def test_invalid_prompts_are_refused_before_training(inputs, prompts, words):
    if prompts is None:
        (inputs / "p.jsonl").unlink()
    else:
        (inputs / "p.jsonl").write_bytes(prompts)
    code, out, error = call(inputs)
    assert code == 2
    assert not out
    assert words in error
    assert error.count("\n") == 1
    assert not (inputs / "out").exists()


@pytest.mark.parametrize(
    "options, words",
    [
        (["--out", "text.txt"], "is a file: name another folder"),
        (["--results", "text.txt"], "is a file: name another folder"),
        (["--results", "text.txt/deep"], "is a file: name another folder"),
        (["--seed", "-1"], "seed is -1"),
        (["--limit", "nan"], "--limit is nan"),
        (["--text", "nowhere.txt"], "nowhere.txt does not exist"),
    ],
)
def test_invalid_paths_and_limits_are_refused(inputs, monkeypatch, options, words):
    monkeypatch.chdir(inputs)
    code, out, error = call(inputs, *options)
    assert code == 2
    assert not out
    assert words in error
    assert error.count("\n") == 1
    assert not (inputs / "out").exists()


def test_failed_writes_are_reported_in_one_line(inputs, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(campaign, "pack", full)
    code, out, error = call(inputs)
    assert code == 1
    assert error == "[Errno 28] No space left on device\n"
    assert "complete: no" in out
    monkeypatch.setattr(Workspace, "open", full)
    assert call(inputs)[::2] == (2, "[Errno 28] No space left on device\n")


def test_interrupt_names_the_way_to_continue(inputs, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "advance", interrupted)
    code, out, error = call(inputs)
    assert code == 130
    assert "continue where they were when the same command is given again" in error
    assert error.count("\n") == 1
    monkeypatch.undo()
    assert call(inputs)[0] == 0


def test_too_few_prompts_are_noted_at_once(inputs, monkeypatch):
    monkeypatch.setattr(campaign, "FULL", TOY)
    paths = {"text": "text.txt", "prompts": "p.jsonl", "out": "out"}
    arguments = [word for name, path in paths.items() for word in (f"--{name}", str(inputs / path))]
    done = CliRunner().invoke(APP, [*arguments, "--device", "cpu", "--limit", "1e-9"])
    assert done.exit_code == 0
    assert (
        "note: prompts are 1 of t; the report requires 2 of each of 6 tasks or more" in done.stdout
    )


ODD_PARTS = (
    ("{", "is damaged"),
    ("[]", "holds no result"),
    ('{"found": 3}', "holds no result"),
    ("{}", "holds no result"),
)


@pytest.mark.parametrize("held, words", ODD_PARTS)
def test_damaged_stage_result_is_named(inputs, held, words):
    folder = Workspace(
        inputs / "out", TOY, (inputs / "text.txt",), (), (inputs / "p.jsonl",), "cpu"
    )
    folder.open()
    folder.save_result("text", 1.0, {})
    (inputs / "out" / "parts" / "text.json").write_text(held)
    with pytest.raises(ValueError, match=f"text.json {words}.*delete it"):
        folder.result("text")
    code, _, error = call(inputs)
    assert code == 2
    assert "text.json" in error
    assert error.count("\n") == 1


def test_malformed_stage_result_is_named_by_its_requirement(inputs):
    call(inputs)
    folder = Workspace(
        inputs / "out", TOY, (inputs / "text.txt",), (), (inputs / "p.jsonl",), "cpu"
    )
    for part, result, line in (
        ("equal-model", {}, "equal"),
        ("race", {"over_assisted": [{"group": "all"}], "rows": []}, "raced"),
    ):
        folder.save_result(part, 1.0, result)
        with pytest.raises(ValueError, match=f"the report's '{line}' cannot be read from parts/ "):
            report.requirements(folder, [])
        code, out, error = call(inputs)
        assert code == 1
        assert error.count("\n") == 1
        assert line in error
        assert "complete: no" in out
        (inputs / "out" / "parts" / f"{part}.json").unlink()
    assert call(inputs)[0] == 0


def test_other_seed_is_refused(inputs):
    assert call(inputs)[0] == 0
    code, _, error = call(inputs, "--seed", 3)
    assert code == 2
    assert "was started with seed 0, now it is 3" in error


def test_damaged_latency_grid_fails_its_stage_only(inputs):
    folder = Workspace(
        inputs / "out", TOY, (inputs / "text.txt",), (), (inputs / "p.jsonl",), "cpu"
    )
    folder.open()
    (inputs / "out" / "ladders").mkdir()
    (inputs / "out" / "ladders" / "8b.json").write_text("{}")
    (part,) = (stage for stage in stages() if stage.name == "ladder-8b")
    (state,) = advance(folder, [part], 60, say=lambda line: None)
    assert state.state == "failed"
    assert "8b.json: not a latency grid: missing keys" in state.why
    assert (inputs / "out" / "log" / "ladder-8b.txt").exists()
    assert folder.result("ladder-8b") is None

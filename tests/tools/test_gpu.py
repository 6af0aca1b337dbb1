"""Steps on a lent GPU: a cut call goes on, failures do not block, results and states go home."""

import io
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import gpu
import pytest
import typer

from simspec.cli import _load_extras, app

LIST = """
kinds  | 0.1 | | policies --json | never-written
wrong  | 0.1 | | sweep no-such-recording |
absent | 0.1 | {work}/logs/second.txt | policies |
second | 2 | | COLUMNS=200 sweep tiny-model-greedy --policy fixed:2 --cost 0.1 --replicates 1 |
"""


def unpacked(home):
    whole = b"".join(piece.read_bytes() for piece in sorted(home.glob("results.tar.gz.*")))
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}


def test_failed_and_absent_steps_do_not_block_and_results_go_home_in_pieces(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(gpu, "PIECE", 300)
    monkeypatch.setattr(gpu, "STEPS", LIST)
    work, home = tmp_path / "w", tmp_path / "home"
    given = ["--work", str(work), "--out", str(home)]
    assert gpu.main([*given, "--list"]) == 0
    assert capsys.readouterr().out.count("| to do |") == 4
    assert gpu.main([*given, "--minutes", "0"]) == 3
    out = capsys.readouterr().out
    assert f"absent: to do, {work}/logs/second.txt is not here" in out
    assert "4 of 4 steps are not done" in out
    assert gpu.main(given) == 3
    out = capsys.readouterr().out
    assert "wrong: failed with 2: simspec: recording 'no-such" in out
    assert out.index("wrong: failed") < out.index("second: done")
    assert all(piece.stat().st_size <= 300 for piece in home.iterdir())
    held = unpacked(home)
    assert b"fixed:2" in held["logs/second.txt"]
    for name, data in held.items():  # a fresh machine goes on with what came home
        (tmp_path / "next" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "next" / name).write_bytes(data)
    ran, run = [], gpu.run
    monkeypatch.setattr(gpu, "run", lambda step, *rest: ran.append(step.name) or run(step, *rest))
    for _ in range(2):
        assert gpu.main(["--work", str(tmp_path / "next")]) == 1
    assert ran == ["wrong", "absent"]  # once more, and no third time
    assert "wrong: failed twice" in capsys.readouterr().out
    with pytest.raises(ValueError, match="is no new step"):
        gpu.read_steps("a | b", False, tmp_path)


def test_waiting_takes_steps_as_their_files_arrive(tmp_path, monkeypatch):
    steps = gpu.read_steps("a | 1 | {work}/weights | x |\nb | 1 | | y |", False, tmp_path)
    ran = []
    monkeypatch.setattr(gpu, "run", lambda step, *_: ran.append(step.name) or 0)
    monkeypatch.setattr(gpu.STOP, "wait", lambda _: (tmp_path / "weights").touch())
    assert gpu.run_all(steps, tmp_path, tmp_path / "home", 9, wait=True) == 0
    assert ran == ["b", "a"]


def test_a_call_that_is_killed_stops_its_step_and_leaves_it_to_do(tmp_path):
    (tmp_path / "w" / "states").mkdir(parents=True)
    code = "import gpu, sys; gpu.STEPS = 'slow | 1 | | demo |'; sys.exit(gpu.main())"
    call = subprocess.Popen(
        [sys.executable, "-c", code, "--work", str(tmp_path / "w")],
        cwd=Path(gpu.__file__).parent, stdout=subprocess.PIPE,
    )  # fmt: skip
    while not (tmp_path / "w" / "logs" / "slow.txt").exists():
        time.sleep(0.01)
    call.send_signal(signal.SIGTERM)
    out, _ = call.communicate()
    assert b"slow: stopped, goes on in the next call" in out
    assert call.returncode == 3
    assert not (tmp_path / "w" / "states" / "slow").exists()
    assert "logs/slow.txt" in unpacked(tmp_path / "w" / "home")


@pytest.mark.parametrize("toy", [False, True])
def test_the_list_measures_every_cell_that_is_missing_and_a_step_stops_at_the_deadline(
    toy, tmp_path
):
    steps = gpu.read_steps(gpu.STEPS, toy, tmp_path)
    _load_extras()
    for step in steps:  # all options exist, and take these values
        command, words = typer.main.get_command(app), list(step.command)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        assert command.make_context(step.name, words).params
    assert {step.command[0] for step in steps} == {"engine", "measure", "record", "run"}
    assert steps[0].variables == ("VLLM_USE_V2_MODEL_RUNNER=0",)
    (tmp_path / "logs").mkdir()
    assert gpu.run(steps[0], tmp_path, 0.0) is None

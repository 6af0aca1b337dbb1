"""Steps on a lent GPU: done ones are not run again, a stopped one goes on, results go home."""

import io
import tarfile

import gpu
import pytest

LIST = """
kinds  | policies --json | never-written
second | sweep tiny-model-greedy --policy fixed:2 --cost 0.1 --replicates 1 |
"""


def unpacked(folder, name):
    whole = b"".join(piece.read_bytes() for piece in sorted(folder.glob(f"{name}.tar.xz.*")))
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}


def test_steps_run_once_and_their_results_go_home_in_pieces(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "PIECE", 100)
    steps, home = tmp_path / "steps", tmp_path / "home"
    steps.write_text(LIST)
    given = ["--steps", str(steps), "--work", str(tmp_path / "w"), "--out", str(home)]
    assert gpu.main([*given, "--list"]) == 0
    assert capsys.readouterr().out.count("(to do)") == 2
    assert gpu.main([*given, "--minutes", "0"]) == 3
    assert "2 steps left: kinds, second" in capsys.readouterr().out
    assert gpu.main(given) == 0
    assert "all steps are done" in capsys.readouterr().out
    assert all(piece.stat().st_size <= 100 for piece in home.iterdir())
    (log,) = unpacked(home, "second").values()
    assert b"fixed:2" in log
    monkeypatch.setattr(gpu, "run", None)  # nothing is left to run
    assert gpu.main(given) == 0


def test_a_step_that_fails_ends_the_call_with_its_code_and_last_lines(tmp_path, capsys):
    (tmp_path / "steps").write_text("wrong | sweep no-such-recording |")
    given = ["--steps", str(tmp_path / "steps"), "--work", str(tmp_path)]
    assert gpu.main(given) == 2
    assert "FAILED with 2" in capsys.readouterr().out
    with pytest.raises(ValueError, match="is no new step"):
        gpu.read_steps("a | b", {}, tmp_path)


def test_the_lists_of_the_tool_name_commands_and_a_step_stops_at_the_deadline(tmp_path):
    for told in (gpu.FULL, gpu.TOY):
        steps = gpu.read_steps(gpu.STEPS, told, tmp_path)
        assert {step.command[0] for step in steps} == {"train", "record", "measure", "run", "audit"}
    assert gpu.run(steps[0], tmp_path, 0.0) is None

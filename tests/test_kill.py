"""Killed jobs leave whole files, and the same command resumes to the same result."""

import os
import random
import signal
import time

import pytest
from interrupted_jobs import RECORD, prompts, rows
from toy_models import TRAIN, begin_training

SLOW = os.environ.get("SIMSPEC_SLOW")
LIVES, DRAFTERS = (2, ["model", "early_exit"]) if SLOW else (1, ["early_exit"])


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_recording_killed_repeatedly_equals_an_undisturbed_one(server, tmp_path, drafter):
    arguments = [*RECORD, "--drafter", drafter]
    folder, began = prompts(tmp_path / "whole", 6), time.perf_counter()
    code, operations = server(folder, arguments)
    seconds = time.perf_counter() - began
    assert code == 0
    assert operations > 40
    whole = rows(tmp_path / "whole" / "x.parquet")
    assert whole.sequences == 6
    draw = random.Random(drafter)
    for life in range(LIVES):
        folder, kills = prompts(tmp_path / str(life), 6), 0
        while True:
            # half of the kills come before a file operation, half at any moment
            moment = (
                {"die_at": draw.randint(1, operations)}
                if kills % 2 == 0
                else {"after": draw.uniform(0, seconds)}
            )
            code, _ = server(folder, arguments, **(moment if kills < 3 else {}))
            if (folder / "x.parquet").exists():
                assert rows(folder / "x.parquet") == whole
            if code == 0:
                break
            assert code == -signal.SIGKILL
            kills += 1
        names = {
            p.name for p in folder.iterdir() if not p.name.startswith(".x.json.")
        }  # a data card that was being written
        assert names == {"p.jsonl", "x.parquet", "x.json"}
        assert rows(folder / "x.parquet") == whole


def test_recording_survives_a_kill_at_any_file_operation(server, tmp_path):
    """Killed before every fifth operation and each of the last eight, then run again."""
    arguments = ["record", "p.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 2]
    code, operations = server(prompts(tmp_path / "whole", 2), arguments)
    whole = rows(tmp_path / "whole" / "x.parquet")
    assert code == 0
    assert 20 < operations < 60
    for operation in sorted({*range(1, operations, 5), *range(operations - 7, operations + 1)}):
        folder = prompts(tmp_path / str(operation), 2)
        assert server(folder, arguments, die_at=operation)[0] == -signal.SIGKILL
        if (folder / "x.parquet").exists():
            assert rows(folder / "x.parquet") == whole
        assert server(folder, arguments)[0] == 0
        assert rows(folder / "x.parquet") == whole
        assert not (folder / "x.parquet.parts").exists()


def test_kill_during_cleanup_leaves_the_next_recording_intact(server, tmp_path):
    """Killed once the trace is whole; then the same file is recorded with other settings."""
    arguments = ["record", "p.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 2]
    _, operations = server(prompts(tmp_path / "whole", 2), arguments)
    code, _ = server(prompts(tmp_path / "other", 2), [*arguments, "--seed", 5, "--rule", "coupled"])
    other, refusals = rows(tmp_path / "other" / "x.parquet"), 0
    for operation in range(operations, 0, -1):
        folder = prompts(tmp_path / str(operation), 2)
        server(folder, arguments, die_at=operation)
        if not (folder / "x.parquet").exists():
            break
        code, _ = server(folder, [*arguments, "--seed", 5, "--rule", "coupled"])
        refusals += code == 2  # the settings of the first are still there
        assert code in (0, 2)
        if code == 0:
            assert rows(folder / "x.parquet") == other
    assert refusals >= 2
    assert operations - operation > 4


def learnt(folder):
    """What training leaves in its folder, but the card, which says when and where."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in (folder / "m").rglob("*")
        if p.is_file() and p.name != "card.json"
    }


def test_training_killed_repeatedly_gives_the_same_weights(server, tmp_path):
    arguments = [*TRAIN, "--steps", "110"]
    for name in ("whole", "killed"):
        begin_training(tmp_path / name)
    code, operations = server(tmp_path / "whole", arguments)
    whole, draw, kills = learnt(tmp_path / "whole"), random.Random(1), 0
    assert code == 0
    assert operations > 20
    assert any(name.endswith("exit.safetensors") for name in whole)
    while True:
        moment = (
            {"die_at": draw.randint(1, operations // 2)}
            if kills % 2 == 0
            else {"after": draw.uniform(0, 1)}
        )
        code, _ = server(tmp_path / "killed", arguments, **(moment if kills < 3 else {}))
        if code == 0:
            break
        kills += 1
    resumed = {
        name: held
        for name, held in learnt(tmp_path / "killed").items()
        if not name.endswith(".part")
    }
    assert kills >= 2
    assert resumed == whole

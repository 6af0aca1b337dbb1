"""Killed jobs leave whole files, and the same command resumes to the same result.

A few kills; with SIMSPEC_SLOW two hundred, in ten pieces that may run in parallel.
"""

import os
import random
import signal
import time

import pytest
from forked_jobs import RECORD, prompts, rows
from toy_models import TRAIN, begin_training

SLOW = bool(os.environ.get("SIMSPEC_SLOW"))
PIECES = 10 if SLOW else 1
KILLS = {"early_exit": 10, "model": 4, "train": 6} if SLOW else {"early_exit": 3, "train": 3}
PER_RUN = 3


class Recording:
    def __init__(self, drafter):
        self.arguments = [*RECORD, "--drafter", drafter]

    def begin(self, folder):
        prompts(folder, 6)

    def kept(self, folder):
        """What has been written for good, by name."""
        if (folder / "x.parquet").exists():
            return {"x.parquet": rows(folder / "x.parquet")}
        return {path.name: path.read_bytes() for path in folder.glob("*.parts/0*.parquet")}

    def holds(self, before, after):
        return "x.parquet" in after or before.items() <= after.items()

    def result(self, folder):
        names = {p.name for p in folder.iterdir() if not p.name.startswith(".x.json.")}
        assert names == {"p.jsonl", "x.parquet", "x.json"}  # but a card that was being written
        return self.kept(folder)


class Training:
    arguments = [*TRAIN, "--steps", "110"]

    def begin(self, folder):
        begin_training(folder)

    def kept(self, folder):
        weights = folder.glob("m/early_exit/*.safetensors")
        return {str(path.relative_to(folder)): path.read_bytes() for path in weights}

    def holds(self, before, after):
        return before.items() <= after.items()

    def result(self, folder):
        """What training leaves in its folder, but the card, which says when and where."""
        files = [path for path in (folder / "m").rglob("*") if path.is_file()]
        left = [path for path in files if path.name != "card.json" and path.suffix != ".part"]
        return {str(path.relative_to(folder)): path.read_bytes() for path in left}


JOBS = {"early_exit": Recording("early_exit"), "model": Recording("model"), "train": Training()}


@pytest.fixture(scope="module", params=KILLS)
def undisturbed(request, server, tmp_path_factory):
    """(the job's name, its result, its seconds and file operations)"""
    job, folder = JOBS[request.param], tmp_path_factory.mktemp("whole") / request.param
    job.begin(folder)
    began = time.perf_counter()
    code, operations = server(folder, job.arguments)
    seconds = time.perf_counter() - began
    assert code == 0, server.error
    assert operations > 20
    assert job.kept(folder).items() <= job.result(folder).items()
    return request.param, job.result(folder), seconds, operations


@pytest.mark.parametrize("piece", range(PIECES))
def test_kills_lose_nothing(server, undisturbed, tmp_path, piece, record_property):
    """Every other kill comes before a file operation, the others at any moment."""
    name, whole, seconds, operations = undisturbed
    job, draw, kills, runs = JOBS[name], random.Random(f"{name}{piece}"), 0, 0
    while kills < KILLS[name]:
        folder, runs, own = tmp_path / str(runs), runs + 1, 0
        job.begin(folder)
        while True:
            before, moment = job.kept(folder), {}
            if own < PER_RUN and kills < KILLS[name]:
                at = {"die_at": draw.randint(1, operations)}, {"after": draw.uniform(0, seconds)}
                moment = at[kills % 2]
            code, _ = server(folder, job.arguments, **moment)
            assert code in (0, -signal.SIGKILL), server.error
            kept = job.kept(folder)
            assert job.holds(before, kept)
            assert kept.get("x.parquet") in (None, whole.get("x.parquet"))
            if code == 0:
                break
            kills, own = kills + 1, own + 1
        assert job.result(folder) == whole
    assert kills == KILLS[name]
    measured = f"{name}, piece {piece}: {kills} SIGKILLs in {runs} runs lost nothing"
    record_property("measured", measured)


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

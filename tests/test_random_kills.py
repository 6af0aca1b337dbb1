"""SIGKILL at random moments: what was written stays, and the same command ends the same way.

A few kills; with SIMSPEC_SLOW two hundred, in ten pieces that may run in parallel.
"""

import os
import random
import signal
import time

import pytest
from interrupted_jobs import RECORD, prompts, rows
from toy_models import TRAIN, begin_training

SLOW = bool(os.environ.get("SIMSPEC_SLOW"))
PIECES = 10 if SLOW else 1
KILLS = {"record": 10, "train": 4, "sweep": 6} if SLOW else {"record": 2, "sweep": 2}
PER_RUN = 3
KILLS = {"record": 10, "train": 4} if SLOW else {"record": 2}


class Recording:
    arguments = [*RECORD, "--drafter", "early_exit"]

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
        return rows(folder / "x.parquet")


class Training:
    arguments = [*TRAIN, "--steps", "40"]

    def begin(self, folder):
        begin_training(folder)

    def kept(self, folder):
        weights = folder.glob("m/early_exit/*.safetensors")
        return {str(path.relative_to(folder)): path.read_bytes() for path in weights}

    def holds(self, before, after):
        return before.items() <= after.items()

    def result(self, folder):
        return self.kept(folder)


JOBS = {"record": Recording(), "train": Training()}


@pytest.fixture(scope="module", params=KILLS)
def undisturbed(request, server, tmp_path_factory):
    """(the job's name, its result, its seconds)"""
    job, folder = JOBS[request.param], tmp_path_factory.mktemp("whole") / request.param
    for _ in range(2):  # the first run compiles
        job.begin(folder := folder.with_name(folder.name + "_"))
        began = time.perf_counter()
        assert server(folder, job.arguments)[0] == 0, server.error
        seconds = time.perf_counter() - began
    return request.param, job.result(folder), seconds


@pytest.mark.parametrize("piece", range(PIECES))
def test_random_kills_lose_nothing(server, undisturbed, tmp_path, piece, record_property):
    name, whole, seconds = undisturbed
    job, draw, kills, runs = JOBS[name], random.Random(f"{name}{piece}"), 0, 0
    while kills < KILLS[name]:
        folder, runs, own = tmp_path / str(runs), runs + 1, 0
        job.begin(folder)
        while True:
            before = job.kept(folder)
            spared = own == PER_RUN or kills == KILLS[name]
            after = None if spared else draw.uniform(0, seconds)
            code, _ = server(folder, job.arguments, after=after)
            assert code in (0, -signal.SIGKILL), server.error
            assert job.holds(before, job.kept(folder))
            if code == 0:
                break
            kills, own = kills + 1, own + 1
        assert job.result(folder) == whole
    assert kills == KILLS[name]
    measured = f"{name}, piece {piece}: {kills} SIGKILLs in {runs} runs lost nothing"
    record_property("measured", measured)

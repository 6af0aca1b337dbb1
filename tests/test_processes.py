"""One recording made by several processes: the file of one process, whatever their number."""

import json
import os
import signal
import subprocess
import sys

import pytest
from forked_jobs import prompts

from real.processes import ALONE, Processes, launched_processes
from simspec import load_trace

TASKS = ("prose", "list", "code")
RECORD = ["record", "p.jsonl", "--out", "x.parquet", "--rule", "coupled"]
RECORD += ["-k", 3, "--budget", 8, "--batch", 2]


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def launched(folder, processes, *arguments):
    """(exit code, stdout, stderr) of torchrun of the command with this number of processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", str(processes), "-m", "simspec.cli"]
    done = subprocess.run(
        [*launcher, *map(str, arguments)], cwd=folder, text=True, env=ENVIRONMENT,
        capture_output=True, timeout=180,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="session")
def forked(server):
    """The same in forks of a loaded process; (exit code, stderr)."""

    def run(folder, processes, *arguments, **job):
        code, _ = server(folder, arguments, processes=processes, **job)
        return code, server.error

    return run


@pytest.fixture(scope="module")
def whole(forked, tmp_path_factory):
    """The folder of a recording by one process."""
    folder = prompts(tmp_path_factory.mktemp("one") / "whole", 35, TASKS)
    code, error = forked(folder, 1, *RECORD)
    assert code == 0, error
    return folder


def same_bytes(folder, whole):
    return (folder / "x.parquet").read_bytes() == (whole / "x.parquet").read_bytes()


def test_two_processes_make_the_file_of_one(tmp_path, whole):
    folder = prompts(tmp_path / "f", 35, TASKS)
    code, out, error = launched(folder, 2, *RECORD)
    assert code == 0, error
    assert out.count("wrote x.parquet: 35 sequences") == 1
    assert same_bytes(folder, whole)
    card, other = (json.loads((f / "x.json").read_text()) for f in (folder, whole))
    assert card == other
    assert {p.name for p in folder.iterdir()} == {"p.jsonl", "x.parquet", "x.json"}


def test_killed_process_ends_the_job_and_its_command_goes_on_with_what_is_whole(
    tmp_path, server, forked, whole
):
    """SIGKILL for the second of two once a shard is there; then three processes go on."""
    folder = prompts(tmp_path / "f", 35, TASKS)
    server.start(folder, RECORD, processes=2)
    parts = folder / "x.parquet.parts"
    while not any(parts.glob("0*.parquet")) and not server.ended(0.002):
        pass
    os.kill(server.running()[1], signal.SIGKILL)
    code, _ = server.finish()
    assert code == -signal.SIGKILL
    # the other one
    told = "simspec: stopped by SIGTERM", "another one has ended early"
    assert any(words in server.error for words in told)
    assert not (folder / "x.parquet").exists()
    kept = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in parts.glob("0*.parquet")}
    assert 1 <= len(kept) < 5
    assert all(load_trace(path).rows for path in kept)  # none is half written
    code, error = forked(folder, 3, *RECORD)
    assert code == 0, error
    assert same_bytes(folder, whole)
    assert {p.name for p in folder.iterdir()} == {"p.jsonl", "x.parquet", "x.json"}


def test_several_drafters_share_sequences_of_one_file(tmp_path, forked):
    several = [
        "record", "p.jsonl", "--out", "all", "--drafter", "early_exit", "--drafter", "medusa",
    ]  # fmt: skip
    files = {}
    for processes in (1, 2):
        folder = prompts(tmp_path / str(processes), 20, TASKS)
        code, error = forked(folder, processes, *several, "-k", 2, "--budget", 4)
        assert code == 0, error
        files[processes] = {p.name: p.read_bytes() for p in (folder / "all").iterdir()}
    assert set(files[1]) == {
        "early_exit.parquet", "early_exit.json", "medusa.parquet", "medusa.json", "sequences.json",
    }  # fmt: skip
    assert files[1] == files[2]


WRITES = """
import sys
from pathlib import Path

from toy_lm import toy_decoder, toy_prompts

from real.processes import launched_processes
from real.train import sequences
from real.train.sequences import LoadedTarget, Writing, write_sequences
from real.train.text import split_prompts

sequences.BATCH["cpu"], sequences.BLOCK["cpu"] = 16, 64
work, decoder = Path(sys.argv[1]), toy_decoder(2, spread=0.8)
target = LoadedTarget(decoder, decoder, None, {"weights": "w"}, (3, 7))
with launched_processes() as processes:
    prompts = split_prompts(toy_prompts(40), {}, 0)
    written = write_sequences(Writing(target, prompts, 1800, 6, 4), work, processes=processes)
    shards = list((work / "sequences").glob("*.safetensors"))
    assert len(written) == len(shards) * 32 >= 256
"""


def test_training_text_is_the_same_whatever_the_number_of_processes(tmp_path, forked):
    (tmp_path / "writes.py").write_text(WRITES)
    files = {}
    for processes in (1, 2):
        work = tmp_path / str(processes)
        code, error = forked(tmp_path, processes, work, program="writes.py")
        assert code == 0, error
        files[processes] = {
            p.relative_to(work): p.read_bytes() for p in work.rglob("*") if p.is_file()
        }
    assert files[1] == files[2]


def test_user_errors_end_the_job(tmp_path, forked):
    folder = prompts(tmp_path / "f", 2)
    code, error = forked(folder, 2, *RECORD, "--drafter", "lookahead")
    assert code == 2
    assert "simspec: " in error
    assert {p.name for p in folder.iterdir()} == {"p.jsonl"}


GOOD = {
    "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}  # fmt: skip


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"RANK": "2"}, "RANK 2"),
        ({"RANK": "-1"}, "RANK -1"),
        ({"RANK": "x"}, "'x'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE 0"),
        ({"WORLD_SIZE": "many"}, "'many'"),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK 1"),
        ({"LOCAL_RANK": "1.5"}, "'1.5'"),
        ({"MASTER_PORT": "port"}, "does not reach the others: .*'port'"),
        ({"MASTER_PORT": "99999"}, "does not reach the others"),
    ],
)
def test_environments_that_cannot_be_are_refused_in_one_line(monkeypatch, changed, words):
    for name, value in (GOOD | changed).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=words) as caught, launched_processes():
        pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [None, "1"])
def test_without_a_launcher_a_process_is_alone(monkeypatch, size):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if size:
        monkeypatch.setenv("WORLD_SIZE", size)
    with launched_processes() as processes:
        assert processes is ALONE


def test_shares_cover_the_work_and_a_gpu_is_that_of_the_local_number():
    several = [Processes(rank, 3, rank % 2) for rank in range(3)]
    owners = [[p.rank for p in several if p.has(part)] for part in range(7)]
    assert owners == [[0], [1], [2], [0], [1], [2], [0]]
    assert [p.device("cuda") for p in several] == ["cuda:0", "cuda:1", "cuda:0"]
    assert several[1].device("cuda:5") == "cuda:5"
    assert several[1].device("cpu") == "cpu"
    assert ALONE.device("cuda") == "cuda"

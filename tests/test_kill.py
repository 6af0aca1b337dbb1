"""Killed and interrupted jobs leave whole files; the same command resumes to the same result."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
from shell import command, refused

import real.jobs
import real.record.recorder
import real.record.shards
from real.record import RecordingFiles
from simspec import load_trace, synthetic

# A server process imports everything, and forks one child a command. The child counts its file
# operations below its folder, and kills itself before the n-th where requested. So every moment at
# which a kill could leave a file half written is reachable by its number.
SERVER = """
import json, os, signal, sys, time
from functools import partial
import torch
import real.train.pipeline, real.jobs, real.record.recorder
from real.pair import TINY, load_pair
from simspec.cli import main

for drafter in ("model", "early_exit"):
    load_pair(TINY, drafter)
real.jobs.record.RecordingFiles = partial(real.record.RecordingFiles, shard_size=1)
DEEDS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"}

def child(folder, die_at, arguments):
    deeds = [0]
    def heard(event, told):
        if event not in DEEDS or isinstance(told[0], int):
            return
        if os.path.abspath(os.fsdecode(told[0])).startswith(folder):
            deeds[0] += 1
            if deeds[0] == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
    os.chdir(folder)
    sys.stderr = open(os.devnull, "w")
    sys.stdout = sys.stderr
    sys.addaudithook(heard)
    try:
        main(arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    return code, deeds[0]

for line in sys.stdin:
    *given, after = json.loads(line)
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        code, deeds = child(*given)
        os.write(into, str(deeds).encode())
        os._exit(code)
    os.close(into)
    if after is not None:
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)  # not waited for yet: the number is still its own
    status = os.waitpid(pid, 0)[1]
    print(json.dumps([os.waitstatus_to_exitcode(status), int(os.read(out, 99) or 0)]), flush=True)
    os.close(out)
"""


class Server:
    """Runs commands in children of one loaded process."""

    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            **pipes,
        )

    def __call__(self, folder, arguments, die_at=0, after=None):
        """(exit code, deeds); killed before deed `die_at` or `after` seconds, the code is -9."""
        print(
            json.dumps([str(folder), die_at, list(map(str, arguments)), after]),
            file=self.process.stdin,
            flush=True,
        )
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def server():
    made = Server()
    yield made
    made.process.communicate(timeout=60)
    assert made.process.returncode == 0


def prompts(folder, count):
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": f"p{i}", "task": "t", "text": f"Number {i} of the list is"} for i in range(count)
    ]
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def rows(path):
    """A recording without what may differ: the revision of the checkout, and the command line."""
    trace = load_trace(path)
    object.__setattr__(trace, "meta", replace(trace.meta, git="", argv=()))
    return trace


RECORD = ["record", "p.jsonl", "--out", "x.parquet", "--rule", "coupled", "-k", 4, "--budget", 12]


@pytest.mark.parametrize("drafter", ["model", "early_exit"])
def test_a_recording_killed_again_and_again_holds_the_rows_of_an_undisturbed_one(
    server, tmp_path, drafter
):
    asked = [*RECORD, "--drafter", drafter]
    code, deeds = server(prompts(tmp_path / "whole", 6), asked)
    assert code == 0
    assert deeds > 40
    whole = rows(tmp_path / "whole" / "x.parquet")
    assert whole.sequences == 6
    draw = random.Random(drafter)
    for life in range(2):
        folder, kills = prompts(tmp_path / str(life), 6), 0
        while True:
            # half of the kills come before a deed, half at any moment
            at = (
                {"die_at": draw.randint(1, deeds)}
                if kills % 2 == 0
                else {"after": draw.uniform(0, 0.6)}
            )
            code, _ = server(folder, asked, **(at if kills < 3 else {}))
            if (folder / "x.parquet").exists():
                assert rows(folder / "x.parquet") == whole
            if code == 0:
                break
            assert code == -signal.SIGKILL
            kills += 1
        names = {
            p.name for p in folder.iterdir() if not p.name.startswith(".x.json.")
        }  # a card that was being written
        assert names == {"p.jsonl", "x.parquet", "x.json"}
        assert rows(folder / "x.parquet") == whole


def test_any_deed_of_a_recording_may_be_its_last(server, tmp_path):
    """Killed before every fifth deed and each of the last eight, then run again."""
    asked = ["record", "p.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 2]
    code, deeds = server(prompts(tmp_path / "whole", 2), asked)
    whole = rows(tmp_path / "whole" / "x.parquet")
    assert code == 0
    assert 20 < deeds < 60
    for at in sorted({*range(1, deeds, 5), *range(deeds - 7, deeds + 1)}):
        folder = prompts(tmp_path / str(at), 2)
        assert server(folder, asked, die_at=at)[0] == -signal.SIGKILL
        if (folder / "x.parquet").exists():
            assert rows(folder / "x.parquet") == whole
        assert server(folder, asked)[0] == 0
        assert rows(folder / "x.parquet") == whole
        assert not (folder / "x.parquet.parts").exists()


def test_a_kill_while_it_clears_up_mixes_nothing_into_the_next_recording(server, tmp_path):
    """Killed once the trace is whole; then the same file is recorded with other settings."""
    asked = ["record", "p.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 2]
    _, deeds = server(prompts(tmp_path / "whole", 2), asked)
    code, _ = server(prompts(tmp_path / "other", 2), [*asked, "--seed", 5, "--rule", "coupled"])
    other, refusals = rows(tmp_path / "other" / "x.parquet"), 0
    for at in range(deeds, 0, -1):
        folder = prompts(tmp_path / str(at), 2)
        server(folder, asked, die_at=at)
        if not (folder / "x.parquet").exists():
            break
        code, _ = server(folder, [*asked, "--seed", 5, "--rule", "coupled"])
        refusals += code == 2  # the settings of the first are still there
        assert code == 2 or code == 0 and rows(folder / "x.parquet") == other
    assert refusals >= 2
    assert deeds - at > 4


def learnt(folder):
    """What training leaves in its folder, but the card, which says when and where."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in (folder / "m").rglob("*")
        if p.is_file() and p.name != "card.json"
    }


def test_training_killed_again_and_again_learns_the_same_weights(server, tmp_path):
    asked = ["train", "text.txt", "--toy", "--steps", "110,12,12", "--out", "m"]
    words = [
        "a", "drafter", "proposes", "and", "the", "target", "disposes", "of", "every", "token",
        "that", "it", "is", "shown",
    ]  # fmt: skip
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(
            " ".join(words[i * i % len(words)] for i in range(1500))
        )
    code, deeds = server(tmp_path / "whole", asked)
    whole, draw, kills = learnt(tmp_path / "whole"), random.Random(1), 0
    assert code == 0
    assert deeds > 20
    assert any(name.endswith("exit.safetensors") for name in whole)
    while True:
        at = (
            {"die_at": draw.randint(1, deeds // 2)}
            if kills % 2 == 0
            else {"after": draw.uniform(0, 1)}
        )
        code, _ = server(tmp_path / "killed", asked, **(at if kills < 4 else {}))
        if code == 0:
            break
        kills += 1
    found = {
        name: held
        for name, held in learnt(tmp_path / "killed").items()
        if not name.endswith(".part")
    }
    assert kills >= 2
    assert found == whole


# ---- interrupts


LONG = ["record", "p.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 24]


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(tmp_path):
    """The real process, interrupted when its first shard of eight texts is on disk."""
    folder = prompts(tmp_path / "cut", 17)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-m", "simspec.cli", *map(str, LONG)]
    job = subprocess.Popen(
        arguments,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    shard = folder / "x.parquet.parts" / "000000.parquet"
    while not shard.exists() and job.poll() is None:
        time.sleep(0.01)
    job.send_signal(signal.SIGINT)
    out, error = job.communicate(timeout=120)
    assert job.returncode == 130, error
    assert out == ""
    assert error.splitlines()[-1].startswith("simspec: interrupted")
    assert "same command" in error
    assert error.count("simspec:") == 1
    assert shard.exists()
    assert not (folder / "x.parquet").exists()
    kept = shard.stat().st_mtime_ns, shard.read_bytes()
    seen = []
    made = real.record.shards.load_trace

    def loaded(path):
        seen.append((path.stat().st_mtime_ns, path.read_bytes()))
        return made(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real.record.shards, "load_trace", loaded)
        assert command(folder, *LONG)[0] == 0
    assert seen[0] == kept  # it was not made anew
    assert command(prompts(tmp_path / "whole", 17), *LONG)[0] == 0
    assert rows(folder / "x.parquet") == rows(tmp_path / "whole" / "x.parquet")


@pytest.mark.parametrize("job", ["record", "sweep", "train"])
def test_an_interrupt_before_anything_is_done_leaves_nothing(tmp_path, monkeypatch, job):
    folder = prompts(tmp_path, 2)

    def stopped(*_, **__):
        raise KeyboardInterrupt

    if job == "record":
        monkeypatch.setattr("real.record.sequence_block.target_sequences", stopped)
        refused(folder, *RECORD, words="interrupted", code=130)
    elif job == "sweep":
        synthetic.iid(0.5, 1, 9, 2).save(folder / "t.parquet")
        monkeypatch.setattr("simspec.trace_file.digest", stopped)
        refused(
            folder,
            "sweep",
            "t.parquet",
            "--policy",
            "fixed:1",
            "--out",
            "o.csv",
            words="interrupted",
            code=130,
        )
    else:
        monkeypatch.setattr("real.train.training_text.train_tokenizer", stopped)
        (folder / "text.txt").write_text("words " * 99)
        code, out, error = command(folder, "train", "text.txt", "--toy", "--out", "m")
        assert code == 130
        assert out == ""
        assert error.endswith("same command is given again\n")
        assert not [
            p for p in folder.rglob("*") if p.is_file() and p.name not in ("p.jsonl", "text.txt")
        ]


# ---- damage in between


@pytest.fixture
def half(tmp_path, monkeypatch):
    """A recording interrupted with two of its three shards on disk, and the whole recording."""
    monkeypatch.setattr(real.jobs.record, "RecordingFiles", partial(RecordingFiles, shard_size=2))
    asked = ["record", "p.jsonl", "--out", "x.parquet", "-k", 3, "--budget", 4]
    assert command(prompts(tmp_path / "whole", 6), *asked)[0] == 0
    made, text = [], real.record.recorder.record_sequence

    def until_the_fifth(*given):
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(text(*given))
        return made[-1]

    folder = prompts(tmp_path / "half", 6)
    with monkeypatch.context() as patch:
        patch.setattr(real.record.recorder, "record_sequence", until_the_fifth)
        assert command(folder, *asked)[0] == 130
    assert sorted(p.name for p in (folder / "x.parquet.parts").iterdir()) == [
        "000000.parquet",
        "000002.parquet",
        "sequences.json",
        "settings.json",
    ]
    return folder, asked, rows(tmp_path / "whole" / "x.parquet")


def test_a_shard_with_a_flipped_bit_is_never_used_in_silence(half):
    folder, asked, whole = half
    shard = folder / "x.parquet.parts" / "000002.parquet"
    raw, draw, refusals = shard.read_bytes(), random.Random(0), 0
    kept = {p: p.read_bytes() for p in shard.parent.iterdir()}
    for _ in range(16):
        at = draw.randrange(len(raw))
        shard.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << draw.randrange(8)]) + raw[at + 1 :])
        code, out, error = command(folder, *asked)
        if code == 0:
            assert rows(folder / "x.parquet") == whole
            (folder / "x.parquet").unlink()
            shard.parent.mkdir()
            for path, held in kept.items():
                path.write_bytes(held)
            continue
        refusals += 1
        assert code == 2
        assert out == ""
        assert error.count("\n") == 1
        assert "x.parquet.parts/000002.parquet" in error
        assert error.startswith("simspec: ")
        assert "delete this file" in error
        assert not (folder / "x.parquet").exists()
    assert refusals > 8
    shard.unlink()  # as the line says
    assert command(folder, *asked)[0] == 0
    assert rows(folder / "x.parquet") == whole


def test_a_shard_of_other_texts_is_refused_though_it_is_whole(half):
    folder, asked, whole = half
    parts = folder / "x.parquet.parts"
    (parts / "000002.parquet").write_bytes((parts / "000000.parquet").read_bytes())
    refused(folder, *asked, words="000002.parquet holds other sequences", progress=True)
    (parts / "000002.parquet").unlink()
    assert command(folder, *asked)[0] == 0
    assert rows(folder / "x.parquet") == whole


@pytest.mark.parametrize("text", ["", "{", "[" * 200_000, "\x00"])
def test_settings_that_are_damaged_are_named(half, text):
    folder, asked, _ = half
    (folder / "x.parquet.parts" / "settings.json").write_text(text)
    refused(folder, *asked, words="settings.json is damaged", progress=True)


def test_shards_without_their_settings_are_made_again(half):
    folder, asked, whole = half
    (folder / "x.parquet.parts" / "settings.json").unlink()
    other = [*asked[:-1], 3]
    assert command(folder, *other)[0] == 0
    assert rows(folder / "x.parquet").budget.tolist() == [3] * 6
    assert whole.budget.tolist() == [4] * 6

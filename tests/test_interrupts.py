"""Interrupted jobs say how to continue, and the same command does."""

import os
import signal
import subprocess
import sys
import time

import pytest
from interrupted_jobs import RECORD, prompts, rows
from shell import command, refused

import real.record.recorder
import real.rerun
from simspec import synthetic

PROMPTS = 14
# One at a time, the sequences of a later shard are not written yet when the first is on disk.
LONG = ["record", "p.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 16, "--batch", 1]


def test_interrupted_recording_continues_with_the_same_command(tmp_path):
    """The real process, interrupted when its first shard of eight texts is on disk."""
    folder = prompts(tmp_path / "cut", PROMPTS)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-m", "simspec.cli", *map(str, LONG)]
    job = subprocess.Popen(
        arguments,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a background shell ignores the signal, and its children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
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
    load = real.record.recorder.load_trace

    def loaded(path):
        seen.append((path.stat().st_mtime_ns, path.read_bytes()))
        return load(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real.record.recorder, "load_trace", loaded)
        assert command(folder, *LONG)[0] == 0
    assert seen[0] == kept  # it was not made anew
    assert command(prompts(tmp_path / "whole", PROMPTS), *LONG)[0] == 0
    assert rows(folder / "x.parquet") == rows(tmp_path / "whole" / "x.parquet")


@pytest.mark.parametrize("job", ["record", "sweep", "train"])
def test_early_interrupt_leaves_no_file(tmp_path, monkeypatch, job):
    folder = prompts(tmp_path, 2)

    def stopped(*_, **__):
        raise KeyboardInterrupt

    if job == "record":
        monkeypatch.setattr("real.record.sequences.target_sequences", stopped)
        refused(folder, *RECORD, words="interrupted", code=130)
    elif job == "sweep":
        synthetic.iid(0.5, 1, 9, 2).save(folder / "t.parquet")
        monkeypatch.setattr("simspec.trace.file.digest", stopped)
        refused(
            folder, "sweep", "t.parquet", "--policy", "fixed:1", "--out", "o.csv",
            words="interrupted", code=130
        )  # fmt: skip
    else:
        monkeypatch.setattr("real.train.text.documents", stopped)
        (folder / "text.txt").write_text("words " * 99)
        code, out, error = command(folder, "train", "medusa", "text.txt", "--out", "m")
        assert code == 130
        assert out == ""
        assert error.endswith("same command is given again\n")
        assert not [
            p for p in folder.rglob("*") if p.is_file() and p.name not in ("p.jsonl", "text.txt")
        ]

"""Signals end a command with one line and 128 + their number, whenever they arrive."""

import os
import signal
import subprocess
import sys
import time

import pytest
from forked_jobs import prompts

from simspec.output import interrupts

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def start(folder, *arguments, program=("-m", "simspec.cli"), ignored=()):
    """The command as a process of its own, which a shell in the background would not shield."""

    def as_in_foreground():
        for number in CODES:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)], cwd=folder, env=ENVIRONMENT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=as_in_foreground
    )  # fmt: skip


WAITS = """
import simspec.output.interrupts as i, sys, time
i.install()
if "body" in sys.argv:
    from simspec.cli import app, main
    def wait():
        try:
            print("ready", flush=True)
            time.sleep(60)
        finally:
            print("cleaned up", flush=True)
    app.command("wait")(wait)
    main(["wait"])
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", CODES, ids=lambda n: n.name)
@pytest.mark.parametrize("where", ["body", "imports"])
def test_signal_ends_with_one_line_and_its_code(tmp_path, number, where):
    """In a command's body, and before or after it."""
    job = start(tmp_path, where, program=("-c", WAITS))
    assert job.stdout.readline() == "ready\n"
    job.send_signal(number)
    out, error = job.communicate(timeout=60)
    assert job.returncode == CODES[number], error
    assert out == ("cleaned up\n" if where == "body" else "")
    (line,) = error.splitlines()
    name = "interrupted" if number == signal.SIGINT else f"stopped by {number.name}"
    assert line.startswith(f"simspec: {name}; ")
    assert "continue where they were" in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_signal_during_the_imports_ends_with_one_line(tmp_path, number):
    """The real program, as soon as it has taken over the signals."""
    job = start(tmp_path, "sweep", "absent.parquet")
    status = f"/proc/{job.pid}/status"
    while job.poll() is None:
        with open(status) as file:
            caught = next(line for line in file if line.startswith("SigCgt:")).split()[1]
        if int(caught, 16) >> (signal.SIGTERM - 1) & 1:
            break
        time.sleep(0.002)
    job.send_signal(number)
    _, error = job.communicate(timeout=60)
    assert job.returncode == CODES[number], error
    (line,) = error.splitlines()
    assert line.startswith("simspec: ")


def test_ignored_hangup_stays_ignored(tmp_path):
    """nohup: the command goes on."""
    job = start(tmp_path, "body", program=("-c", WAITS), ignored=[signal.SIGHUP])
    assert job.stdout.readline() == "ready\n"
    job.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    assert job.poll() is None
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode == 143


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_recording_that_is_stopped_leaves_its_shards(server, tmp_path, number):
    """In a fork of a loaded process, once the first of three is on the disk."""
    arguments = ["record", "p.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 24, "--batch", 1]
    folder = prompts(tmp_path, 17)
    shard = folder / "x.parquet.parts" / "000000.parquet"
    code, _ = server(folder, arguments, once=str(shard), sent=number)
    assert code == CODES[number], server.error
    (line,) = (line for line in server.error.splitlines() if "simspec: " in line)
    told = "interrupted" if number == signal.SIGINT else "stopped by SIGTERM"
    assert line.startswith(f"simspec: {told}; recording, training")
    assert "same command" in line
    assert shard.exists()
    assert not (folder / "x.parquet").exists()
    assert not list(folder.rglob(".*.part"))


def test_importing_the_package_takes_over_no_signal():
    """Control: a program that uses simspec as a library keeps its own handlers."""
    assert not interrupts.is_program()
    code = "import signal, simspec; print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"

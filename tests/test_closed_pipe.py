"""A reader of the output that goes away, and an output that is full: no traceback."""

import os
import subprocess
import sys

import pytest

from simspec import synthetic

LONG = """
import simspec.cli as cli

def long(lines: int):
    for i in range(lines):
        print("a line of the output", i)

cli.app.command("long")(long)
cli.NAMES = (*cli.NAMES, "long")  # or the extras would be loaded, torch among them
cli.main(["long", "{lines}"])
"""


def run(folder, arguments, stdout):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=stdout, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    return done.returncode, done.stderr


def closed_pipe():
    """The writing end of a pipe that nobody reads."""
    out, into = os.pipe()
    os.close(out)
    return into


@pytest.mark.parametrize("lines", [1, 5000], ids=["at the end", "in between"])
def test_closed_pipe_ends_silently(tmp_path, lines):
    """As other programs of a pipe end; the first is written when the interpreter ends."""
    pipe = closed_pipe()
    try:
        assert run(tmp_path, ["-c", LONG.format(lines=lines)], pipe) == (1, "")
    finally:
        os.close(pipe)


def test_table_written_before_a_closed_pipe_is_whole(tmp_path):
    synthetic.iid(0.7, 2, 30, 4).save(tmp_path / "t.parquet")
    sweep = ["-m", "simspec.cli", "sweep", "t.parquet", "--policy", "fixed:1", "--out", "o.csv"]
    pipe = closed_pipe()
    try:
        code, error = run(tmp_path, sweep, pipe)
    finally:
        os.close(pipe)
    assert (code, error) == (1, "")
    assert (tmp_path / "o.csv").read_text().count("\n") >= 2
    assert sorted(os.listdir(tmp_path)) == ["o.csv", "t.parquet"]


@pytest.mark.parametrize("lines", [1, 5000])
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_full_output_is_one_line(tmp_path, lines):
    with open("/dev/full", "w") as full:
        code, error = run(tmp_path, ["-c", LONG.format(lines=lines)], full)
    assert code == 2
    assert error.startswith("simspec: ")
    assert "No space left on device" in error
    assert error.count("\n") == 1


def test_control_the_interpreter_alone_reports_a_closed_pipe(tmp_path):
    """Control: without the flush a message of the interpreter is left."""
    pipe = closed_pipe()
    try:
        code, error = run(tmp_path, ["-c", "print('a line')"], pipe)
    finally:
        os.close(pipe)
    assert code == 120
    assert "BrokenPipeError" in error

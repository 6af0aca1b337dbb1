"""The command line in this process: its exit code, its output, and the files it leaves."""

import os
import resource
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from simspec.cli import main


def command(folder, *arguments):
    """(exit code, stdout, stderr) of the command line, from that folder."""
    out, error = StringIO(), StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(error):
        try:
            main(list(map(str, arguments)))
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
    return code, out.getvalue(), error.getvalue()


def simspec(*arguments, cwd, code=0):
    """(stdout, stderr) of the command line, from the folder `cwd`, with that exit code."""
    left, out, error = command(cwd, *arguments)
    assert left == code, out + error
    return out, error


def run(capsys, *arguments):
    """(exit code, stdout, stderr) of the command line, with pytest's capture."""
    try:
        main(list(map(str, arguments)))
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def said_within(most, call):
    """What is raised by call() in a forked process that may take `most` more bytes, and 20 s."""
    read, write = os.pipe()
    if not (pid := os.fork()):
        try:
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + most, size + most))
            resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
            call()
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said


def contents(folder):
    """Every file with its bytes, and every folder."""
    return {p: p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def refused(folder, *arguments, words, progress=False, code=2):
    """The command fails with one line that holds `words`, and writes nothing.

    progress: lines of progress may come before.
    """
    before = contents(folder)
    left, out, error = command(folder, *arguments)
    *earlier, last = error.splitlines() or [""]
    assert left == code, (left, out, error)
    assert out == "", (left, out, error)
    assert last.startswith("simspec: "), error
    assert words in last, error
    assert len(last) < 700, error
    assert progress or not earlier, error
    assert not any("simspec:" in line or "Traceback" in line for line in earlier), error
    assert contents(folder) == before, set(contents(folder)) ^ set(before)

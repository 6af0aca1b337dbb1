"""The command line as a user meets it, in this process: what it answers, and what it leaves behind."""

from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO

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


def run(capsys, *arguments):
    """(exit code, stdout, stderr) of the command line, from where the tests run, with pytest's capture."""
    try:
        main(list(map(str, arguments)))
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def contents(folder):
    """Every file with its bytes, and every folder."""
    return {p: p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def refused(folder, *arguments, words, progress=False, code=2):
    """The command is answered in one line that holds `words` (behind lines of progress, where allowed), and writes nothing."""
    before = contents(folder)
    left, out, error = command(folder, *arguments)
    lines = error.splitlines()
    assert left == code and out == "", (left, out, error)
    assert (
        lines and lines[-1].startswith("simspec: ") and words in lines[-1] and len(lines[-1]) < 700
    ), error
    assert (
        len(lines) == 1
        or progress
        and not any("simspec:" in line or "Traceback" in line for line in lines[:-1])
    ), error
    assert contents(folder) == before, set(contents(folder)) ^ set(before)

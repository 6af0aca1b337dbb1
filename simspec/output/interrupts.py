"""Signals that stop a command: one line on stderr, exit code 128 + signal, kept work goes on."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
KEPT = (
    "recording, training and what is kept in a file continue where they were when the same "
    "command is given again"
)
PROGRAM = "simspec.cli"
"""Runs by `python -m` too; the script is called simspec."""


class _Stop:
    """The signal that was received, and whether a command runs that cleans up after itself."""

    received = int(signal.SIGINT)
    running = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        if self.running:
            raise KeyboardInterrupt
        # while modules are imported, or while the interpreter ends: nothing to clean up
        os.write(2, f"{message()}\n".encode())
        os._exit(exit_code())


_STOP = _Stop()


def message() -> str:
    """The line that says what happened, and that the job goes on."""
    name = signal.Signals(_STOP.received).name
    what = "interrupted" if name == "SIGINT" else f"stopped by {name}"
    return f"simspec: {what}; {KEPT}"


def exit_code() -> int:
    """128 and the number of the last signal received: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + _STOP.received


def install() -> None:
    """Takes over the signals that would end the process; those that are ignored stay ignored."""
    for number in (getattr(signal, name, None) for name in NAMES):
        if number is None:  # no SIGHUP on Windows
            continue
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            try:
                signal.signal(number, _STOP)
            except ValueError:  # not in the main thread
                return


@contextmanager
def stoppable() -> Iterator[None]:
    """While the body runs a signal raises KeyboardInterrupt in it, so that it cleans up."""
    _STOP.received, _STOP.running = int(signal.SIGINT), True
    try:
        yield
    finally:
        _STOP.running = False


def is_program() -> bool:
    """Whether this process is a command of ours, rather than one that imports the package."""
    given = sys.orig_argv
    if "-m" in given:
        at = given.index("-m") + 1
        return at < len(given) and given[at] == PROGRAM
    return Path(sys.argv[0] if sys.argv else "").stem == "simspec"


if is_program():
    install()

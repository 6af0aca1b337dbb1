"""The progress display of the commands."""

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from real.progress import quiet
from simspec.output.names import printable

if TYPE_CHECKING:
    from rich.progress import TaskID

LOG_SECONDS = 60
"""Without a terminal, time between two lines of a label that is not finished."""


@contextmanager
def show_progress(shown: bool = True):
    """Gives a progress callback: bars on stderr; without a terminal, a line a minute and at the end
    of a label.

    Nothing of it where it is not `shown`.
    """
    if not shown:
        yield quiet
        return

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    bars: dict[str, TaskID] = {}
    finished: set[str] = set()
    said = time.monotonic()
    note = TextColumn("{task.fields[note]}", markup=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        note,
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as display:

        def progress(label: str, done: int, total: int, note: str = "") -> None:
            nonlocal said
            label, note = printable(label), printable(note)
            if label not in bars:
                bars[label] = display.add_task(label, total=total, note=note)
            display.update(bars[label], completed=done, total=total, note=note)
            due = time.monotonic() - said >= LOG_SECONDS
            news = due if done < total else label not in finished
            if news and not console.is_terminal:
                print(f"{label}: {done}/{total} {note}".rstrip(), file=sys.stderr, flush=True)
                said = time.monotonic()
            (finished.add if done == total else finished.discard)(label)

        yield progress

"""The progress display of the commands."""

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from real.progress import quiet
from simspec.names import printable

if TYPE_CHECKING:
    from rich.progress import TaskID


@contextmanager
def show_progress(shown: bool = True):
    """Gives a progress callback: bars on stderr; without a terminal, a line per finished label.

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
            label, note = printable(label), printable(note)
            if label not in bars:
                bars[label] = display.add_task(label, total=total, note=note)
            display.update(bars[label], completed=done, total=total, note=note)
            if not console.is_terminal and done == total and label not in finished:
                print(f"{label}: {done}/{total} {note}".rstrip(), file=sys.stderr)
            (finished.add if done == total else finished.discard)(label)

        yield progress

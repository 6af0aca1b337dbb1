"""Options that several commands share, their progress display, and the text on engines."""

import sys
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from real.progress import quiet
from simspec.output.names import printable

if TYPE_CHECKING:
    from rich.progress import TaskID


DRAFTERS = ", ".join(file.name for file in iter_modules([f"{Path(__file__).parents[1]}/drafters"]))
"""Names of the drafters, which are those of their files: help imports none of them."""
MOST_TOKENS = 1 << 20
"""Most tokens of a sequence: caches are allocated for all of them."""


def check_recordings(*names: str) -> None:
    """TraceError or ValueError for recordings that cannot be opened, before torch is imported."""
    from simspec.trace.file import stored_meta
    from simspec.trace.recordings import locate

    for path in locate(names).values() if names else ():
        stored_meta(path)


def parse_tree_size(text: str | None) -> tuple:
    """(width, levels) of WIDTHxLEVELS; () where none is given."""
    if text is None:
        return ()
    width, x, levels = text.partition("x")
    if not (x and width.isdecimal() and levels.isdecimal()):
        raise ValueError(f"--tree is {text!r}; expected WIDTHxLEVELS such as 4x6")
    return int(width), int(levels)


LOG_SECONDS = 60
"""Without a terminal, time between two lines of a label that is not finished."""


@contextmanager
def show_progress(shown: bool = True):
    """Gives a progress callback: bars on stderr with the time left; without a terminal, a line a
    minute and at the end of a label.

    Nothing of it where it is not `shown`.
    """
    if not shown:
        yield quiet
        return

    from rich import progress as bar
    from rich.console import Console

    console = Console(stderr=True)
    bars: dict[str, TaskID] = {}
    finished: set[str] = set()
    began: dict[str, tuple[float, int]] = {}
    said = time.monotonic()
    label, note = (
        bar.TextColumn(f"{{task.{text}}}", markup=False) for text in ("description", "fields[note]")
    )
    columns = label, bar.BarColumn(), bar.MofNCompleteColumn(), bar.TimeRemainingColumn(), note
    with bar.Progress(*columns, console=console, disable=not console.is_terminal) as display:

        def progress(label: str, done: int, total: int, note: str = "") -> None:
            nonlocal said
            label, note = printable(label), printable(note)
            if label not in bars:
                bars[label] = display.add_task(label, total=total, note=note)
            display.update(bars[label], completed=done, total=total, note=note)
            now = time.monotonic()
            start, first = began.setdefault(label, (now, done))
            news = now - said >= LOG_SECONDS if done < total else label not in finished
            if news and not console.is_terminal:
                if first < done < total:
                    minutes = (now - start) / (done - first) * (total - done) / 60
                    left = f"{minutes:.0f} min" if minutes >= 1 else "under a minute"
                    note = f"{note}, {left} left".removeprefix(", ")
                print(f"{label}: {done}/{total} {note}".rstrip(), file=sys.stderr, flush=True)
                said = now
            (finished.add if done == total else finished.discard)(label)

        yield progress


def describe_engines(engines: Mapping[str, str]) -> str:
    """The engines that ran, such as "target engine fast, drafter engine eager"."""
    return ", ".join(f"{model} engine {engine}" for model, engine in engines.items())

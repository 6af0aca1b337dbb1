"""Text on a terminal: names are never cut, sentences wrap, progress is a bar on stderr."""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simspec.output.names import one_note, printable, printable_lines

NARROWEST_TEXT = 24
"""Least width of the texts of `print_fields` next to their names."""


def terminal_width() -> int | None:
    """Columns of the terminal of stdout; None where stdout is a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr with the time left, where that is a terminal; yields a function of how many
    are done."""
    from rich import progress

    console = Console(stderr=True)
    shown = progress.TextColumn(label), progress.BarColumn(), progress.MofNCompleteColumn()
    columns = *shown, progress.TimeRemainingColumn()
    hidden = not console.is_terminal
    with progress.Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)


def print_note(text: object) -> None:
    """Print an error or a note as one line on stderr."""
    print(f"simspec: {one_note(text)}", file=sys.stderr)


def print_text(text: str) -> None:
    """Print text, wrapped at spaces to the terminal; control characters become escapes."""
    if text:
        text = printable_lines(text)
        width = terminal_width()
        console = Console(width=width, highlight=False)
        if width is None:
            console.print(Text(text), soft_wrap=True)
        else:
            console.print(Text(text), overflow="fold")


def print_fields(fields: Mapping[str, object], title: str = "") -> None:
    """Print names and their texts side by side; texts wrap on a terminal, names never do."""
    print_text(title)
    texts = {printable(name): printable(str(value)) for name, value in fields.items()}
    longest = max(map(cell_len, texts), default=0)
    width = terminal_width()
    if width is None or width < longest + NARROWEST_TEXT:
        for name, text in texts.items():
            print_text(f"{name.rjust(longest) if width is None else name}  {text}")
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in texts.items():
        grid.add_row(Text(name), Text(text))
    Console(width=width, highlight=False).print(grid)

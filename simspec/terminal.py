"""Tables and text on a terminal: names are never cut, a narrow terminal gets another layout."""

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simspec.names import one_note, printable, printable_lines
from simspec.text_table import TextTable, one_line

LONG_SECTION = 3
"""Rows of a section, on average, from which sections come before fewer columns."""

NARROWEST_TEXT = 24
"""Least width of the texts of `print_fields` beside their names."""


def terminal_width() -> int | None:
    """Columns of the terminal behind stdout; None where stdout is a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, where that is a terminal; yields a function of how many are done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, names: int = 1, title: str = "",
    optional: Sequence[str] = (), elsewhere: str = "--json",
) -> None:  # fmt: skip
    """Print a table whose first `names` columns name the row; a pipe receives its full width.

    A table too wide for the terminal takes the first of these layouts that fits:

    | layout | what changes |
    | --- | --- |
    | wrapped | headings wrap at spaces; name columns that are equal in all rows move to the title |
    | transposed | one column per row |
    | sections | one table per name in the first column |
    | reduced | `optional` columns are left out, and named in a line with `elsewhere` |
    | stacked | the columns continue in further tables, each with the names |
    | list | one line per cell |

    optional: headings, least important first. Brackets in cells are no markup.
    """
    table = TextTable(
        tuple(map(printable, headings)),
        tuple(tuple(printable(str(cell)) for cell in row) for row in rows),
        names,
    )
    width = terminal_width()
    if width is None or table.width <= width:
        print_text(title)
        table.print()
        return
    left_out = _print_narrow(table, title, width, tuple(map(printable, optional)))
    if left_out:
        print_text(f"left out: {', '.join(left_out)} (in a wider terminal or with {elsewhere})")


def _print_narrow(table: TextTable, title: str, width: int, optional: Sequence[str]) -> list[str]:
    """Print the first layout that fits; the headings left out."""
    table, title = table.without_constant_names(title)
    print_text(title)
    wrapped = table.wrapped()
    if wrapped.width <= width:
        (table if table.width <= width else wrapped).print()
        return []
    table = wrapped
    if not table.rows:
        print_text(f"no rows of {', '.join(map(one_line, table.headings))}")
        return []
    if (transposed := table.transposed()).width <= width:
        transposed.print()
        return []
    sections = table.sections() if table.names > 1 else {}
    if sections and len(sections) * LONG_SECTION <= len(table.rows):
        return _print_sections(sections, width, optional)
    reduced, left_out = table, list[str]()
    for heading in optional:
        if reduced.width > width and len(reduced.headings) > reduced.names + 1:
            reduced = reduced.without(heading)
            left_out.append(heading)
    stack = reduced.stacked(width)
    if max(part.width for part in stack) <= width:
        for part in stack:
            part.print()
        return left_out
    if sections and len(sections) < len(table.rows):
        return _print_sections(sections, width, optional)
    table.print_list(width)
    return []


def _print_sections(
    sections: Mapping[str, TextTable], width: int, optional: Sequence[str]
) -> list[str]:
    left_out = [
        heading
        for name, section in sections.items()
        for heading in _print_narrow(section, name, width, optional)
    ]
    return list(dict.fromkeys(left_out))


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

"""Tables and text on a terminal: names are never cut, a narrow terminal gets another layout."""

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simspec.output.names import markdown_text, one_note, printable, printable_lines

NUMBER = re.compile(r"-|[-+]?\d[\d.,]*(e[-+]?\d+)?[%x]?")
"""A cell that is set to the right, with the dash of a missing value."""


@dataclass(frozen=True)
class TextTable:
    """Headings and rows of strings; the first `names` columns name the row."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int

    @property
    def widths(self) -> list[int]:
        """Terminal cells of each column."""
        return [
            max(cell_len(line) for cell in column for line in cell.split("\n"))
            for column in zip(self.headings, *self.rows)
        ]

    @property
    def width(self) -> int:
        """Terminal cells of a line, with blanks and rules."""
        return sum(self.widths) + 3 * len(self.headings) + 1

    def columns(self, places: Iterable[int], names: int) -> "TextTable":
        """The table of the columns at these places."""
        places = list(places)
        return TextTable(
            tuple(self.headings[i] for i in places),
            tuple(tuple(row[i] for i in places) for row in self.rows),
            names,
        )

    def without(self, heading: str) -> "TextTable":
        """The table less the column of this heading, which may be wrapped."""
        places = [i for i, h in enumerate(self.headings) if one_line(h) != heading]
        return self.columns(places, self.names)

    def without_constant_names(self, title: str) -> tuple["TextTable", str]:
        """(the table less the name columns that are equal in all rows, the title with them)."""
        if len(self.rows) < 2:
            return self, title
        constant = [i for i in range(self.names) if len({row[i] for row in self.rows}) == 1]
        constant = constant[: self.names - 1]
        shared = (f"{one_line(self.headings[i])} {self.rows[0][i]}" for i in constant)
        places = [i for i in range(len(self.headings)) if i not in constant]
        return (
            self.columns(places, self.names - len(constant)),
            "; ".join(filter(None, (title, *shared))),
        )

    def sections(self) -> dict[str, "TextTable"]:
        """{heading and name: the rows of that name}, by the first column."""
        parts: dict[str, list[tuple[str, ...]]] = {}
        for name, *row in self.rows:
            parts.setdefault(f"{one_line(self.headings[0])} {name}", []).append(tuple(row))
        return {
            name: TextTable(self.headings[1:], tuple(rows), self.names - 1)
            for name, rows in parts.items()
        }

    def wrapped(self) -> "TextTable":
        """The table with headings wrapped at spaces, no narrower than the cells below."""
        headings = []
        for heading, *cells in zip(self.headings, *self.rows):
            heading = one_line(heading)
            longest = max(map(cell_len, (*cells, *heading.split(" "), " ")))
            lines = textwrap.wrap(heading, longest, break_long_words=False, break_on_hyphens=False)
            headings.append("\n".join(lines))
        return TextTable(tuple(headings), self.rows, self.names)

    def transposed(self) -> "TextTable":
        """The table with a column for each row, headed by its names."""
        first = "\n".join(one_line(heading) for heading in self.headings[: self.names])
        return TextTable(
            (first, *("\n".join(row[: self.names]) for row in self.rows)),
            tuple(
                (one_line(heading), *cells)
                for heading, *cells in islice(zip(self.headings, *self.rows), self.names, None)
            ),
            1,
        )

    def stacked(self, width: int) -> list["TextTable"]:
        """Tables of some columns each, all with the names; a single column may be too wide."""
        parts, names = [], range(self.names)
        chosen: list[int] = []
        for i in range(self.names, len(self.headings)):
            if chosen and self.columns([*names, *chosen, i], self.names).width > width:
                parts.append(chosen)
                chosen = []
            chosen.append(i)
        return [self.columns([*names, *part], self.names) for part in (*parts, chosen)]

    def print(self) -> None:
        """Print the table as a table of its full width."""
        table = Table()
        for i, (heading, *cells) in enumerate(zip(self.headings, *self.rows)):
            number = i >= self.names and all(NUMBER.fullmatch(cell) for cell in cells)
            table.add_column(Text(heading), justify="right" if number else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*map(Text, row))
        Console(width=self.width).print(table)

    def print_list(self, width: int) -> None:
        """Print the names of each row, then a line for each of its cells."""
        console = Console(width=width, highlight=False)
        for row in self.rows:
            for i, (heading, cell) in enumerate(zip(self.headings, row)):
                line = cell if i < self.names else f"  {one_line(heading)}: {cell}"
                console.print(Text(line), overflow="fold")


def one_line(heading: str) -> str:
    """A wrapped heading on one line."""
    return heading.replace("\n", " ")


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; what its cells hold is text, never markup."""
    first, *others = ([markdown_text(cell) for cell in line] for line in (headings, *rows))
    lines = [first, ["---"] * len(headings), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


LONG_SECTION = 3
"""Rows of a section, on average, from which sections come before fewer columns."""

NARROWEST_TEXT = 24
"""Least width of the texts of `print_fields` next to their names."""


def terminal_width() -> int | None:
    """Columns of the terminal of stdout; None where stdout is a pipe or a file."""
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

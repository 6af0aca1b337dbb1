"""One table, as text on a terminal, Markdown, HTML or JSON."""

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from simspec.output import terminal
from simspec.output.names import html_text, markdown_text, printable

LONG_SECTION = 3
"""Rows of a section, on average, from which sections come before fewer columns."""


def json_data(value: Any) -> Any:
    """Plain data for JSON of records, lists and mappings; NaN is None.

    A record gives {field: value}, or what its `to_dict` gives.
    """
    if hasattr(value, "to_dict"):
        return json_data(value.to_dict())
    if is_dataclass(value):
        return {field.name: json_data(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: json_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_data(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


@dataclass(frozen=True)
class Table:
    """A table; the first `names` columns name the row.

    | field | meaning |
    | --- | --- |
    | headings, rows | columns, and a tuple of cells a row; shown by `str`, in JSON by `json_data` |
    | names | columns of text; the others hold figures |
    | title | above the table |
    | notes | sentences below the table |
    | optional | headings that a narrow terminal leaves out, least important first |
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    names: int = 1
    title: str = ""
    notes: Sequence[str] = ()
    optional: Sequence[str] = ()

    def texts(self) -> list[tuple[str, ...]]:
        """The rows as text."""
        return [tuple(map(str, row)) for row in self.rows]

    def print(self, elsewhere: str = "--json") -> None:
        """Print the table on stdout, see `print_table`, and its notes."""
        print_table(
            self.headings, self.rows, names=self.names, title=self.title, optional=self.optional,
            elsewhere=elsewhere,
        )  # fmt: skip
        for note in self.notes:
            terminal.print_text(note)

    def markdown(self) -> str:
        """Title and table; what its cells hold is text, never markup."""
        table = markdown_table(self.headings, self.texts())
        return f"**{markdown_text(self.title)}**\n\n{table}" if self.title else table

    def html(self) -> str:
        """A table that scrolls by itself; names are text, the other columns numbers."""
        kinds = ["" if i < self.names else " class=n" for i in range(len(self.headings))]
        head, *rows = (
            "".join(f"<{tag}{kind}>{html_text(cell)}</{tag}>" for kind, cell in zip(kinds, line))
            for tag, line in (("th", self.headings), *(("td", row) for row in self.texts()))
        )
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'

    def to_dict(self) -> dict[str, Any]:
        """{title, rows: [{heading: cell}], notes} for JSON."""
        rows = [dict(zip(self.headings, row)) for row in self.rows]
        return {"title": self.title, "rows": rows, "notes": list(self.notes)}


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; what its cells hold is text, never markup."""
    first, *others = ([markdown_text(cell) for cell in line] for line in (headings, *rows))
    lines = [first, ["---"] * len(headings), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


NUMBER = re.compile(r"-|[-+]?\d[\d.,]*(e[-+]?\d+)?[%x]?")
"""A cell that is set to the right, with the dash of a missing value."""


@dataclass(frozen=True)
class _Layout:
    """Printable headings and cells of a table on a terminal."""

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

    def columns(self, places: Iterable[int], names: int) -> "_Layout":
        """The table of the columns at these places."""
        places = list(places)
        return _Layout(
            tuple(self.headings[i] for i in places),
            tuple(tuple(row[i] for i in places) for row in self.rows),
            names,
        )

    def without(self, heading: str) -> "_Layout":
        """The table less the column of this heading, which may be wrapped."""
        places = [i for i, h in enumerate(self.headings) if one_line(h) != heading]
        return self.columns(places, self.names)

    def without_constant_names(self, title: str) -> tuple["_Layout", str]:
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

    def sections(self) -> dict[str, "_Layout"]:
        """{heading and name: the rows of that name}, by the first column."""
        parts: dict[str, list[tuple[str, ...]]] = {}
        for name, *row in self.rows:
            parts.setdefault(f"{one_line(self.headings[0])} {name}", []).append(tuple(row))
        return {
            name: _Layout(self.headings[1:], tuple(rows), self.names - 1)
            for name, rows in parts.items()
        }

    def wrapped(self) -> "_Layout":
        """The table with headings wrapped at spaces, no narrower than the cells below."""
        headings = []
        for heading, *cells in zip(self.headings, *self.rows):
            heading = one_line(heading)
            longest = max(map(cell_len, (*cells, *heading.split(" "), " ")))
            lines = textwrap.wrap(heading, longest, break_long_words=False, break_on_hyphens=False)
            headings.append("\n".join(lines))
        return _Layout(tuple(headings), self.rows, self.names)

    def transposed(self) -> "_Layout":
        """The table with a column for each row, headed by its names."""
        first = "\n".join(one_line(heading) for heading in self.headings[: self.names])
        return _Layout(
            (first, *("\n".join(row[: self.names]) for row in self.rows)),
            tuple(
                (one_line(heading), *cells)
                for heading, *cells in islice(zip(self.headings, *self.rows), self.names, None)
            ),
            1,
        )

    def stacked(self, width: int) -> list["_Layout"]:
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
        table = Grid()
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
    table = _Layout(
        tuple(map(printable, headings)),
        tuple(tuple(printable(str(cell)) for cell in row) for row in rows),
        names,
    )
    width = terminal.terminal_width()
    if width is None or table.width <= width:
        terminal.print_text(title)
        table.print()
        return
    left_out = _print_narrow(table, title, width, tuple(map(printable, optional)))
    if left_out:
        terminal.print_text(
            f"left out: {', '.join(left_out)} (in a wider terminal or with {elsewhere})"
        )


def _print_narrow(table: _Layout, title: str, width: int, optional: Sequence[str]) -> list[str]:
    """Print the first layout that fits; the headings left out."""
    table, title = table.without_constant_names(title)
    terminal.print_text(title)
    wrapped = table.wrapped()
    if wrapped.width <= width:
        (table if table.width <= width else wrapped).print()
        return []
    table = wrapped
    if not table.rows:
        terminal.print_text(f"no rows of {', '.join(map(one_line, table.headings))}")
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
    sections: Mapping[str, _Layout], width: int, optional: Sequence[str]
) -> list[str]:
    left_out = [
        heading
        for name, section in sections.items()
        for heading in _print_narrow(section, name, width, optional)
    ]
    return list(dict.fromkeys(left_out))


def one_line(heading: str) -> str:
    """A wrapped heading on one line."""
    return heading.replace("\n", " ")

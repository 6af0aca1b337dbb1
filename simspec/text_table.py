"""A table of strings and its layouts: wrapped, transposed, in sections, stacked, as a list."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simspec.names import markdown_text

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

"""Tables: what a report returns is a DataFrame, and `show` prints it in every form."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from simspec.output import terminal
from simspec.output.names import markdown_text, printable

if TYPE_CHECKING:
    from pandas import DataFrame as DataFrame
    from rich.table import Table
else:
    DataFrame = Any  # for annotations: pandas is imported where a table is made


def frame(
    rows: Iterable[Any], columns: Sequence[str] | None = None, *, names: int = 1, title: str = "",
    notes: Iterable[str] = (), formats: Mapping[str, str] | None = None,
    optional: Sequence[str] = (),
) -> DataFrame:  # fmt: skip
    """A DataFrame of mappings or tuples; how it is shown is in its `attrs`.

    | attr | meaning |
    | --- | --- |
    | title, notes | a line above the table, sentences below |
    | names | the first columns, which name a row; the others hold figures |
    | formats | {column: format of its numbers and Estimates}; default .3f, "-" for none |
    | optional | columns that a narrow terminal leaves out, least important first |
    """
    from pandas import DataFrame

    table = DataFrame(list(rows), columns=columns, dtype=object)
    for i in range(table.shape[1]):
        column = table.iloc[:, i]
        if not any(cell is None for cell in column):  # else whole numbers become floats
            table.isetitem(i, column.infer_objects())
    table.attrs |= {
        "title": title, "notes": list(notes), "names": names, "formats": dict(formats or {}),
        "optional": list(optional),
    }  # fmt: skip
    return table


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
    if hasattr(value, "tolist"):  # numbers of numpy
        return json_data(value.tolist())
    return None if isinstance(value, float) and math.isnan(value) else value


def frame_data(table: DataFrame) -> dict[str, Any]:
    """{title, rows: [{column: value}], notes} for JSON."""
    cells = zip(*(table.iloc[:, i].tolist() for i in range(table.shape[1])))
    rows = [dict(zip(table.columns, row)) for row in cells]
    title, notes = table.attrs.get("title", ""), table.attrs.get("notes", [])
    return {"title": title, "rows": json_data(rows), "notes": list(notes)}


def flat(table: DataFrame) -> DataFrame:
    """The table with an Estimate's limits in columns of their own: NAME, NAME_low, NAME_high."""
    from pandas import DataFrame

    rows = []
    for record in table.to_dict("records"):
        cells: dict[Any, Any] = {}
        for name, cell in record.items():
            if hasattr(cell, "low"):  # an Estimate
                cells |= {name: cell.value, f"{name}_low": cell.low, f"{name}_high": cell.high}
            else:
                cells[name] = cell
        rows.append(cells)
    return DataFrame(rows)


def show(
    frames: DataFrame | Iterable[DataFrame], as_json: bool = False, as_markdown: bool = False,
    **about: Any,
) -> None:  # fmt: skip
    """Print a table as JSON {**about, title, rows, notes}, as Markdown or as text.

    Several are {**about, tables: [{title, rows, notes}]}.

    What cells hold is text, never markup. Text in a pipe has its full width; on a terminal names
    and headings fold, and what still does not fit is printed as a line for each cell.
    """
    from pandas import DataFrame

    one = isinstance(frames, DataFrame)
    frames = [frames] if isinstance(frames, DataFrame) else list(frames)
    if as_json:
        tables = [frame_data(table) for table in frames]
        print(json.dumps(json_data(about) | (tables[0] if one else {"tables": tables})))
    elif as_markdown:
        print("\n\n".join(map(markdown, frames)))
    else:
        for table in frames:
            _print(table)


def texts(table: DataFrame) -> list[tuple[str, ...]]:
    """The cells as text, a tuple a row."""
    formats = table.attrs.get("formats", {})
    columns = [
        [_text(cell, formats.get(name)) for cell in table.iloc[:, i].tolist()]
        for i, name in enumerate(table.columns)
    ]
    return list(zip(*columns))


def markdown(table: DataFrame) -> str:
    """Title, table and notes as Markdown."""
    first, *others = (
        f"| {' | '.join(map(markdown_text, line))} |"
        for line in (list(map(str, table.columns)), *texts(table))
    )
    lines = "\n".join((first, "| " + " | ".join(["---"] * len(table.columns)) + " |", *others))
    title, notes = table.attrs.get("title", ""), table.attrs.get("notes", [])
    parts = [f"**{markdown_text(title)}**" if title else "", lines, *map(markdown_text, notes)]
    return "\n\n".join(filter(None, parts))


def _text(cell: Any, form: str | None) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "-"
    if hasattr(cell, "text"):  # an Estimate
        return str(cell.text(form) if form else cell.text())
    if isinstance(cell, float):
        return format(cell, form or ".3f")
    if isinstance(cell, int) and not isinstance(cell, bool):
        return format(cell, form or "d")
    return str(cell)


def _print(table: DataFrame) -> None:
    from rich.console import Console
    from rich.text import Text

    terminal.print_text(table.attrs.get("title", ""))
    width, left_out = terminal.terminal_width(), []
    grid, least = _grid(table)
    for column in table.attrs.get("optional", ()):
        if width is None or least <= width:
            break
        left_out.append(column)
        grid, least = _grid(table.drop(columns=left_out))
    if width is None or least <= width:
        Console(width=width or 1 << 20, highlight=False).print(grid)
    else:
        console, left_out, names = Console(width=width, highlight=False), [], table.attrs["names"]
        for row in texts(table):
            for i, (heading, cell) in enumerate(zip(table.columns, row)):
                line = printable(cell if i < names else f"  {heading}: {cell}")
                console.print(Text(line), overflow="fold")
    if left_out:
        left = ", ".join(map(printable, left_out))
        terminal.print_text(f"left out: {left} (in a wider terminal or with --json)")
    for note in table.attrs.get("notes", ()):
        terminal.print_text(note)


def _grid(table: DataFrame) -> tuple["Table", int]:
    """(the table for rich, the least width that cuts no figure and leaves names 12 cells)."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    grid, least, names = Table(), 1, table.attrs.get("names", 1)
    rows = [tuple(map(printable, row)) for row in texts(table)]
    for i, heading in enumerate(map(printable, map(str, table.columns))):
        longest = max([cell_len(row[i]) for row in rows], default=0)
        words = max(map(cell_len, heading.split()), default=0)
        if i < names:
            least_here = min(max(longest, words), 12)
            grid.add_column(Text(heading), overflow="fold", min_width=least_here)
        else:
            least_here = max(longest, words)
            numbers = all(cell[:1] in "+-.0123456789" for cell in (row[i] for row in rows))
            justify: Any = "right" if numbers else "left"
            grid.add_column(Text(heading), overflow="fold", min_width=least_here, justify=justify)
        least += least_here + 3
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid, least

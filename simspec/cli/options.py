"""Arguments and options that several commands share."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

Traces = Annotated[
    list[str] | None,
    typer.Argument(
        help="Recordings: files, or names of bundled ones; default: all bundled ones.",
        show_default=False,
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", help="name[:arg,...], repeatable; default: a range of all families."),
]
Cost = Annotated[
    str | None,
    typer.Option(
        help="A cost file, or the ratio draft step / target step; "
        "default: NAME.cost.json beside each recording, else 0.1."
    ),
]
MixedCosts = Annotated[
    bool,
    typer.Option(
        "--mixed-costs", help="Compare costs of different devices, threads or dtypes all the same."
    ),
]
Batch = Annotated[int | None, typer.Option(help="Of a cost table: sequences decoded together.")]
Context = Annotated[int | None, typer.Option(help="Of a cost table: tokens before the round.")]
Replicates = Annotated[int, typer.Option(help="Draws of each policy that draws.")]
Level = Annotated[float, typer.Option(help="Level of the intervals.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Csv = Annotated[
    Path | None, typer.Option("--out", "--csv", help="Write every row to this CSV file.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of a table.")]


def print_notes(notes: Iterable[str]) -> None:
    """Prints each note as one line on stderr."""
    from simspec.terminal import print_note

    for note in notes:
        print_note(note)

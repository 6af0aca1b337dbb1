"""Arguments and options that several commands share, and how they print a result."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from simspec.output.table import Table

LONGEST_DRAFT = 255
"""Tokens of a draft: recordings hold lengths in a byte."""
MOST_REPLICATES = 10_000
MOST_THREADS = 256
MOST_BATCH = 1 << 16
MOST_CONTEXT = 1 << 24
MOST_PROMPTS = 1_000_000
MOST_REPEATS = 10_000
MOST_ROWS = 1 << 40


def at_most(most: int, advice: str = "give a smaller number") -> Callable[..., Any]:
    """An option's check, before anything is read or allocated: ValueError for a number above."""

    def check(param: typer.CallbackParam, value: Any) -> Any:
        for number in value if isinstance(value, list | tuple) else [value]:
            if isinstance(number, int) and number > most:
                raise ValueError(
                    f"{param.opts[0]} is {str(number)[:40]}, expected at most {most}: {advice}"
                )
        return value

    return check


def check_seed(seed: int) -> int:
    """An option's check: ValueError for a seed that no draw can have."""
    from simspec.numerics import rng

    rng.check_seed(seed)
    return seed


def check_level(level: float) -> float:
    """An option's check: ValueError for the level of no interval."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a number in (0, 1), such as 0.95")
    return level


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
        "default: NAME.cost.json next to each recording, else 0.1."
    ),
]
MixedCosts = Annotated[
    bool,
    typer.Option(
        "--mixed-costs", help="Compare costs of different devices, threads or dtypes all the same."
    ),
]
Regimes = Annotated[
    bool,
    typer.Option(
        "--regimes", help="Speedups at the costs, and at c = 0.05, 0.10 and 0.15, side by side."
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(callback=at_most(MOST_BATCH), help="Of a cost table: sequences decoded together."),
]
Context = Annotated[
    int | None,
    typer.Option(callback=at_most(MOST_CONTEXT), help="Of a cost table: tokens before the round."),
]
Replicates = Annotated[
    int,
    typer.Option(
        callback=at_most(MOST_REPLICATES, "4 to 8 are enough"),
        help="Draws of each policy that draws.",
    ),
]
Level = Annotated[float, typer.Option(callback=check_level, help="Level of the intervals.")]
Seed = Annotated[
    int, typer.Option(callback=check_seed, help="Seed of all draws and of the bootstrap.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Csv = Annotated[
    Path | None, typer.Option("--out", "--csv", help="Write every row to this CSV file.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of a table.")]


def print_notes(notes: Iterable[str]) -> None:
    """Prints each note as one line on stderr."""
    from simspec.output.terminal import print_note

    for note in notes:
        print_note(note)


def print_result(
    data: Mapping[str, Any], tables: "Iterable[Table]", as_json: bool, as_markdown: bool = False
) -> None:
    """Print records as one JSON object, or their tables as Markdown or as text."""
    from simspec.output.table import json_data

    if as_json:
        print(json.dumps(json_data(data)))
    elif as_markdown:
        print("\n\n".join(table.markdown() for table in tables))
    else:
        for table in tables:
            table.print()

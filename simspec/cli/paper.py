"""simspec paper: tables in the shape of the papers', on this project's recordings."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from simspec.cli.options import Json, Markdown, Replicates, Seed, print_notes, print_result

PANEL = "Simulate"


def paper(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help="eesd-1 to eesd-8, eesd-figure-1b and -3 to -5, glide-1 to glide-4, "
            "glide-figure-4 and -7, eagle-1, eagle-4 to -7, eagle-figure-10, s2d-1 "
            "to -5, s2d-figure-3; default: all.",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Recordings and cards, laid out as traces/ of a checkout; default: this "
            "checkout's."
        ),
    ] = None,
    replicates: Replicates = 4,
    seed: Seed = 0,
    as_json: Json = False,
    as_markdown: Markdown = False,
) -> None:
    """Print tables in the shape of the papers', on this project's recordings and training cards.

    Intervals are 95% over prompts, and over prices where costs hold replicates. Cells without a
    card or a recording say so.

    Example: simspec paper eesd-5
    """
    from simspec.cost.comparison import warning_notes
    from simspec.papers.card import find_cards
    from simspec.papers.catalogue import TABLES
    from simspec.papers.claim import Inputs
    from simspec.papers.recorded import Recordings
    from simspec.papers.table import covered
    from simspec.trace.recordings import CHECKOUT

    names = tables or list(TABLES)
    if unknown := [name for name in names if name not in TABLES]:
        raise ValueError(f"there is no table {unknown[0]!r}: expected {', '.join(TABLES)}")
    if folder is not None and not folder.is_dir():
        raise ValueError(f"{folder} is no folder: give one laid out as traces/ of a checkout")
    if replicates < 1:
        raise ValueError(f"replicates is {replicates}, expected at least 1")
    root = CHECKOUT if folder is None else folder
    inputs = Inputs(Recordings(root), find_cards(root.resolve().parent), seed, replicates)
    found = {name: TABLES[name](inputs) for name in names}
    print_notes(warning_notes(inputs.recordings.costs))
    if as_json:
        data = {name: table.to_dict() | {"covers": covered(table)} for name, table in found.items()}
        print_result({"seed": seed, "level": 0.95, "tables": data}, (), as_json)
    elif as_markdown:
        print("\n\n".join("\n\n".join((t.markdown(), " ".join(t.notes))) for t in found.values()))
    else:
        for table in found.values():
            over = f"95% intervals over {' and '.join(covered(table))}."
            replace(table, notes=(" ".join((*table.notes, over)),)).print()

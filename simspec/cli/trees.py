"""Commands of the core that `simspec.cli` has no room for."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def trees(
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            help="Recordings: files, or names of bundled ones; default: all bundled ones.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        list[int] | None,
        typer.Option(help="Node budgets of trees, repeatable; default: 8, 16 and 32."),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k", "-k", help="Chain of CAPE and of sets; default: chosen on the other half."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Further policies, repeatable: static:4x2x1, static:TREE.json, fixed:3."),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            help="A cost file, or the ratio draft step / target step; default: NAME.cost.json beside each recording, else 0.1."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Of a cost table: sequences decoded together.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Of a cost table: tokens before the round.")
    ] = None,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of tables.")
    ] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "--csv", help="Write every line to this CSV file.")
    ] = None,
):
    """Compare chains, CAPE's sets and draft trees at equal node budgets: tokens and nodes a round, speedup, with intervals over prompts.

    Example: simspec trees tiny-model-greedy --nodes 8 --nodes 16 --policy static:4x2x1
    """
    from rich.console import Console

    from simspec.files import check_output, replacing
    from simspec.recordings import costs_of, locate
    from simspec.reports.trees import NODES, grove, markdown, show, table

    paths = locate(traces)
    if out is not None:
        check_output(out, *paths.values(), cost or "")
    lines, notes = grove(
        paths,
        costs_of(paths, cost, batch, context),
        nodes or NODES,
        k,
        policy or (),
        level,
        seed=seed,
    )
    for note in notes:
        print(f"simspec: {note}", file=sys.stderr)
    if out is not None:
        with replacing(out) as temporary:
            table(lines).to_csv(temporary, index=False)
    if as_json:
        print(
            json.dumps(
                {
                    "seed": seed,
                    "level": level,
                    "trees": [line.to_dict() for line in lines],
                    "notes": notes,
                }
            )
        )
    elif as_markdown:
        print(markdown(lines))
    else:
        show(lines, Console(width=None if sys.stdout.isatty() else 160))

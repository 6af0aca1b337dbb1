"""simspec roofline: costs from published figures of a model and a GPU."""

import json
from pathlib import Path
from typing import Annotated

import typer

from simspec.cli.options import MOST_BATCH, MOST_CONTEXT, at_most

PANEL = "Record"


def roofline(  # noqa: PLR0913
    out: Annotated[
        Path,
        typer.Option(
            help="The cost model, .json; a table where several batch sizes or contexts are given."
        ),
    ],
    target: Annotated[
        str, typer.Option(help="A model's name, such as llama-3-8b; a wrong one lists all.")
    ],
    drafter: Annotated[
        str,
        typer.Option(
            help="A model's name, or the share of the target's layers before an early exit."
        ),
    ],
    device: Annotated[str, typer.Option(help="A GPU's name, such as h100.")] = "h100",
    k: Annotated[int, typer.Option("--depth", "-k", help="Longest draft to price.")] = 16,
    nodes: Annotated[
        int,
        typer.Option(min=0, max=255, help="Most submitted tokens of a tree to price; 0: no trees."),
    ] = 0,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            callback=at_most(MOST_BATCH), help="Sequences decoded together, repeatable; default 1."
        ),
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(
            callback=at_most(MOST_CONTEXT),
            help="Tokens before the round, repeatable; default 1024.",
        ),
    ] = None,
    weight_bytes: Annotated[float, typer.Option(help="Bytes of a weight of either model.")] = 2.0,
    launch: Annotated[
        float, typer.Option(help="Seconds to launch a layer; no data sheet gives it.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the cost model too.")] = False,
) -> None:
    """Price drafts and verifications from published figures of a model and a GPU: a lower bound.

    Example: simspec roofline --target llama-3-8b --drafter llama-3.2-1b --batch 1 --batch 16
    --out cost.json
    """
    from dataclasses import replace

    from simspec.cost.roofline import roofline_table
    from simspec.cost.shapes import DEVICES, SHAPES, ModelShape, look_up
    from simspec.output.files import check_output

    target_shape = replace(look_up(SHAPES, "model", target), weight_bytes=weight_bytes)
    drafter_shape: ModelShape | float
    try:
        drafter_shape = float(drafter)
    except ValueError:
        drafter_shape = replace(look_up(SHAPES, "model", drafter), weight_bytes=weight_bytes)
    priced = replace(look_up(DEVICES, "device", device), launch=launch)
    check_output(out)
    table = roofline_table(
        target_shape, drafter_shape, priced, k, batch or [1], context or [1024], nodes
    )
    cost = table.simplest()
    cost.to_json(out)
    if as_json:
        print(json.dumps(cost.to_dict()))
    else:
        from simspec.output.terminal import print_text

        print_text("\n".join((*table.describe(), f"wrote {out}, {priced.name}")))

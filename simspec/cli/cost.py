"""simspec cost: costs fitted to a table of accepted length and speed."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from simspec.cli.options import LONGEST_DRAFT, MOST_BATCH, Json, at_most


def cost(
    from_table: Annotated[
        str,
        typer.Option(
            help="CSV or JSON with columns K, accepted_length and speedup (or tokens_per_second, "
            "plain_tokens_per_second; or tpot_ms, plain_tpot_ms); or a published table's name."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The cost model, .json.")],
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth",
            "-k",
            callback=at_most(LONGEST_DRAFT),
            help="Longest draft to price; default: the table's longest.",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            callback=at_most(MOST_BATCH), help="Batch size to fit, where the table has several."
        ),
    ] = None,
    plain: Annotated[
        float | None,
        typer.Option(
            help="tokens_per_second or tpot_ms of plain decoding, where no column has it."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit costs to accepted length and speed by draft length, as engines report them.

    Example: simspec cost --from-table measured.csv --out measured.cost.json --depth 16
    """
    from simspec.files import check_output
    from simspec.fitted_cost import fit_cost
    from simspec.published import published_table
    from simspec.speed_table import read_speed_table

    check_output(out, from_table)
    is_file = Path(from_table).is_file() or from_table.endswith((".csv", ".json"))
    table = (
        read_speed_table(from_table, batch, plain)
        if is_file
        else published_table(from_table, batch)
    )
    if plain is not None and not is_file:
        raise ValueError(f"--plain is given, but {from_table} has plain decoding's speed: drop it")
    fitted = fit_cost(table, depth)
    fitted.cost.to_json(out)
    if as_json:
        line = {"intercept": fitted.line.intercept, "step": fitted.line.step}
        left_out = None if fitted.left_out is None else fitted.left_out.to_dict()
        report = {"residuals": fitted.residuals.to_dict(), "left_out": left_out, **line}
        print(json.dumps(report | {"cost": fitted.cost.to_dict()}))
    else:
        _print(table, fitted, out)


def _print(table: Any, fitted: Any, out: Path) -> None:
    from simspec.terminal import print_table, print_text

    print_table(
        ("task", "K", "accepted length", "round, plain steps", "speedup", "fitted", "error"),
        [
            (
                row.task or "-",
                row.K,
                f"{row.accepted_length:.3f}",
                f"{row.round_cost:.3f}",
                f"{row.speedup:.3f}",
                f"{fitted.line.speedup(row):.3f}",
                f"{fitted.line.error(row):+.1%}",
            )
            for row in table.rows
        ],
        names=2,
        title=table.name,
    )
    for note in fitted.cost.precision.warnings:
        print_text(note)
    print_text(f"wrote {out}, drafts up to {fitted.cost.K}")

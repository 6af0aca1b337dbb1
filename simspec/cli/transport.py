"""simspec transport: accepted length by draft length, and predictions from another one."""

from pathlib import Path
from typing import Annotated

import typer

from simspec.cli.options import (
    LONGEST_DRAFT,
    Json,
    Level,
    Traces,
    at_most,
    check_seed,
    print_result,
)

PANEL = "Exchange with engines"


def transport(
    traces: Traces = None,
    longest: Annotated[
        int | None,
        typer.Option(
            "--longest",
            "-k",
            callback=at_most(LONGEST_DRAFT),
            help="Longest draft; default: 8, or the recording's.",
        ),
    ] = None,
    table: Annotated[
        list[int] | None,
        typer.Option(
            callback=at_most(LONGEST_DRAFT),
            help="Draft length of a table of marginals, repeatable; default: longest.",
        ),
    ] = None,
    level: Level = 0.95,
    seed: Annotated[
        int,
        typer.Option(callback=check_seed, help="Seed of the bootstrap and of acceptance draws."),
    ] = 0,
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG of the errors.")] = None,
) -> None:
    """Compare accepted length at every draft length with tables and rates of another one.

    Published errors of the same predictions follow, with their sources.

    Example: simspec transport tiny-model-greedy tiny-model-coupled --table 4 --table 8
    """
    from simspec.output.files import check_output
    from simspec.reports.transport import (
        plot_transport,
        published_errors,
        published_table,
        transport_tables,
    )
    from simspec.reports.transport import transport as compare
    from simspec.trace.recordings import locate

    paths = locate(traces)
    if plot is not None:
        check_output(plot, *paths.values())
    rows = compare(paths, longest, table or (), level, seed=seed)
    published = published_errors()
    if plot is not None:
        plot_transport(rows, plot)
    data = {"seed": seed, "level": level, "rows": rows, "published": published}
    print_result(data, [*transport_tables(rows), published_table(published)], as_json)

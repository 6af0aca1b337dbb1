"""simspec transport: accepted length by draft length, and stand-ins measured at another one."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from simspec.cli.options import LONGEST_DRAFT, Json, Level, Traces, at_most, check_seed

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

    Published errors of the same stand-ins are shown beside it, with their sources.

    Example: simspec transport tiny-model-greedy tiny-model-coupled --table 4 --table 8
    """
    from simspec.output.files import check_output
    from simspec.reports.transport import plot_transport, published_errors
    from simspec.reports.transport import transport as compare
    from simspec.trace.recordings import locate

    paths = locate(traces)
    if plot is not None:
        check_output(plot, *paths.values())
    rows = compare(paths, longest, table or (), level, seed=seed)
    published = published_errors()
    if plot is not None:
        plot_transport(rows, plot)
    if as_json:
        data = [row.to_dict() for row in rows]
        errors = [asdict(error) for error in published]
        print(json.dumps({"seed": seed, "level": level, "rows": data, "published": errors}))
    else:
        _print(rows)
        _print_published(published)


def _print(rows: list[Any]) -> None:
    from simspec.numerics.stats import MIN_PROMPTS
    from simspec.output.terminal import print_table, print_text
    from simspec.reports.intervals import interval_text

    recordings: dict[str, list[Any]] = {}
    for row in rows:
        recordings.setdefault(row.recording, []).append(row)
    for name, of_recording in recordings.items():
        stand_ins = list(of_recording[0].errors)
        cells = [
            (
                row.K,
                interval_text(row.length, ".3f"),
                *(
                    interval_text(row.errors[stand_in], "+.1%") if stand_in in row.errors else "-"
                    for stand_in in stand_ins
                ),
            )
            for row in of_recording
        ]
        drafter = f"{name}: {of_recording[0].drafter}, {of_recording[0].rule}"
        print_table(("K", "accepted length", *stand_ins), cells, title=drafter)
    print_text(
        "accepted length: tokens a round with the target's own, by replay of fixed:K on rows that "
        "the budget does not cut. Then the errors of stand-ins:"
    )
    print_text(
        "table@M: marginals of rounds of M; iid@M: one rate from M; teacher-forced: all rows."
    )
    print_text(f"Intervals: paired bootstrap over prompts, none for fewer than {MIN_PROMPTS}.")


def _print_published(errors: Sequence[Any]) -> None:
    from simspec.output.terminal import print_table, print_text
    from simspec.reports.transport import summarized

    print_table(
        ("published", "stand-in", "curves", "median error by K", "least", "greatest", "source"),
        [
            (
                row["group"],
                row["stand_in"],
                row["curves"],
                ", ".join(f"{K}: {error:+.1%}" for K, error in row["medians"].items()),
                *(f"{row[name]:+.1%}" for name in ("least", "greatest")),
                row["source"],
            )
            for row in summarized(errors)
        ],
        names=2,
        optional=("source", "curves"),
    )
    print_text("Published figures: live runs without intervals, or replays of raw data.")

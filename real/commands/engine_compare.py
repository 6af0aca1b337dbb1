"""The command `simspec engine compare`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from real.commands.options import Json
from simspec.cli.options import Markdown

if TYPE_CHECKING:
    from simspec import Trace


def compare(
    rows: Annotated[
        list[Path],
        typer.Argument(
            help="Rows of `simspec engine run`; several NAME.rows.jsonl: a line each, with the "
            "costs in NAME.cost.json next to it, or of passes alone where none has one."
        ),
    ],
    cost: Annotated[
        Path | None, typer.Option(help="Costs of `simspec engine measure`: speedups too.")
    ] = None,
    recording: Annotated[
        str | None,
        typer.Option(
            help="Recording of the same prompts: its margins explain near-ties, and it "
            "predicts the drafts of a model."
        ),
    ] = None,
    positions: Annotated[
        bool, typer.Option(help="Acceptance by position too, of a model's or a head's drafts.")
    ] = False,
    shown: Annotated[int, typer.Option(help="Exceptions listed.")] = 20,
    plot: Annotated[
        Path | None, typer.Option(help="Write a PNG of several runs: speedups by draft length.")
    ] = None,
    as_json: Json = False,
    markdown: Markdown = False,
) -> None:
    """Compare every pass of a run with its replay, and predicted with measured speedups.

    The exit code is 1 where a pass differs and no near-tie explains it.

    Example: simspec engine compare vllm.rows.jsonl --cost vllm.cost.json

    Example: simspec engine compare vllm.rows.jsonl llamacpp.rows.jsonl
    """
    from real.engines.compare import accepted_by_position, compare_rows
    from real.engines.measure import speedup_table
    from real.engines.rows import read_rows
    from real.engines.summary import arm_text, length_name, positions_shown, speedups_shown
    from simspec import load_trace
    from simspec.cost.table import load_cost
    from simspec.output.table import markdown_table, print_table
    from simspec.output.terminal import print_text
    from simspec.trace.recordings import locate

    trace = None
    if recording is not None:
        (path,) = locate([recording]).values()
        trace = load_trace(path)
    if len(rows) > 1:
        if positions:
            raise ValueError("--positions is for one file of rows")
        compare_several(rows, (cost, trace, plot), as_json, markdown)
    if plot is not None:
        raise ValueError("--plot draws several runs: name two or more files of rows")
    if positions and trace is None:
        raise ValueError("--positions compares with the drafter's recording: give --recording")
    about, held = read_rows(rows[0])
    result = compare_rows(about, held, trace)
    table = None
    if cost is not None:
        table = speedup_table(about, held, load_cost(cost), trace)
    held_at = accepted_by_position(about, held, trace) if positions and trace is not None else None
    if as_json:
        speedups = None if table is None else table.to_dict()
        values = {"about": about, "passes": result.to_dict(), "speedups": speedups}
        print(json.dumps(values if held_at is None else values | {"positions": held_at}))
        raise typer.Exit(0 if result.equal else 1)
    scheduled = bool(about.get("schedule"))
    counted = [
        (
            length_name(k, scheduled),
            *(f"{a}" if a == b else f"{a}, predicted {b}" for a, b in counters.values()),
        )
        for k, counters in result.counters.items()
    ]
    headings = ("K", "passes", "with a draft", "drafted", "accepted")
    title = (
        f"{about['engine']} {about['version']}: {result.requests} requests, {result.passes} "
        f"passes; {len(result.exceptions)} exceptions, {result.explained}, "
        f"{result.left_out} left out"
    )
    parts: list[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = [(title, headings, counted)]
    if table is not None:
        parts.append(speedups_shown(table))
    if held_at is not None:
        parts.append(positions_shown(held_at))
    for heading, names, cells in parts:
        if markdown:
            print(f"{heading}\n\n{markdown_table(names, cells)}\n")
        else:
            print_table(names, cells, title=heading)
    for difference in result.exceptions[: max(shown, 0)]:
        print_text(
            f"{difference.id} {arm_text(difference.k)}: {difference.kind} {difference.place}, "
            f"engine {difference.engine}, predicted {difference.predicted}"
        )
    raise typer.Exit(0 if result.equal else 1)


def compare_several(
    rows: list[Path],
    given: tuple[Path | None, "Trace | None", Path | None],
    as_json: bool,
    markdown: bool,
) -> NoReturn:
    """A line for each run; the exit code is 1 where one has an exception.

    given: the options --cost, --recording and --plot.
    """
    from real.engines.summary import draw_runs, has_cost, passes_table, run_summary, summary_table
    from simspec.output.files import check_output

    cost, trace, plot = given
    if cost is not None:
        raise ValueError("--cost is for one file of rows; several have their costs next to them")
    if plot is not None:
        check_output(plot)
    if not any(has_cost(path) for path in rows):
        if plot is not None:
            raise ValueError(
                "--plot draws speedups: these runs have no NAME.cost.json next to them"
            )
        table, values = passes_table(rows, trace)
        if as_json:
            print(json.dumps(values))
        elif markdown:
            print(table.markdown())
        else:
            table.print()
        raise typer.Exit(0 if all(value["passes"]["equal"] for value in values) else 1)
    summaries = [run_summary(path, trace) for path in rows]
    if plot is not None:
        draw_runs(summaries, plot)
    table = summary_table(summaries)
    if as_json:
        print(json.dumps([summary.to_dict() for summary in summaries]))
    elif markdown:
        print(table.markdown())
    else:
        table.print()
    raise typer.Exit(1 if any(summary.exceptions for summary in summaries) else 0)

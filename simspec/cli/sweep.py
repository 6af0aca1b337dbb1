"""simspec sweep: policies replayed on recordings."""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from simspec.cli.options import (
    MOST_THREADS,
    Batch,
    Context,
    Cost,
    Csv,
    Json,
    MixedCosts,
    Policies,
    Replicates,
    Traces,
    at_most,
    check_seed,
    print_notes,
)

PANEL = "Simulate"

DEFAULT_POLICIES = (
    "fixed:0", "fixed:1", "fixed:2", "fixed:3", "fixed:4", "fixed:6", "fixed:8", "hf_heuristic",
    "beta_ts", "cost_ts", "cali_ts", "confidence:0.5", "entropy", "product", "oracle",
)  # fmt: skip


def sweep(
    traces: Traces = None,
    policy: Policies = None,
    cost: Cost = None,
    mixed: MixedCosts = False,
    batch: Batch = None,
    context: Context = None,
    replicates: Replicates = 4,
    seed: Annotated[
        int, typer.Option(callback=check_seed, help="Seed of the first replicate.")
    ] = 0,
    by: Annotated[str, typer.Option(help="trace, task or prompt.")] = "trace",
    jobs: Annotated[int, typer.Option(callback=at_most(MOST_THREADS), help="Threads.")] = 1,
    keep: Annotated[
        Path | None,
        typer.Option(help="Keep each result in this folder, and go on from those it holds."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Replay on this Dask scheduler's workers, tcp://HOST:PORT.")
    ] = None,
    as_json: Json = False,
    stream: Annotated[
        bool, typer.Option(help="Print each row as one line of JSON as soon as it is computed.")
    ] = False,
    out: Csv = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG of the speedups.")] = None,
    curve: Annotated[
        Path | None,
        typer.Option(help="Write a PNG of speedup against K, adaptive policies as lines."),
    ] = None,
) -> None:
    """Replay policies on recordings and print what each would gain.

    Example: simspec sweep traces/prose.parquet --policy fixed:3 --policy oracle --cost 0.08

    Many settings: simspec sweep --policy=fixed:{0..8} --policy=beta_ts:alpha0={1,2,4,8}
    (the shell expands the braces)
    """
    from simspec.cli.selection import servable_groups
    from simspec.output.files import check_output, write_csv
    from simspec.replay.sweep import sweep_rows
    from simspec.reports.summaries import plot_sweep
    from simspec.trace.recordings import comparable_costs, locate

    paths = locate(traces)
    outputs = [path for path in (out, plot, curve) if path is not None]
    for i, output in enumerate(outputs):
        check_output(output, *paths.values(), cost or "", *outputs[:i])
    costs, notes = comparable_costs(paths, cost, batch, context, mixed)
    print_notes(notes)
    groups = list(servable_groups(paths, policy or DEFAULT_POLICIES, costs, not policy))
    # A list: all input is validated before the first replay.
    results = [
        sweep_rows(
            group, served, {name: costs[name] for name in group}, replicates, seed, by, jobs=jobs,
            progress=sys.stderr.isatty(), keep=keep, cluster=cluster,
        )
        for served, group in groups
    ]  # fmt: skip
    table = list(_rows(chain.from_iterable(results), stream, as_json))
    if as_json:
        print(json.dumps({"seed": seed, "replicates": replicates, "by": by, "rows": table}))
    if curve is not None:
        _plot_curves(groups, costs, curve, (replicates, seed, jobs))
    if (stream or as_json) and out is None and plot is None:
        return
    import pandas

    if out is not None:
        write_csv(pandas.DataFrame(table), out)
    if plot is not None:
        plot_sweep(pandas.DataFrame(table), plot)
    if not (stream or as_json):
        _print(pandas.DataFrame(table))


def _rows(
    sweep_rows: Iterator[dict[str, Any]], stream: bool, as_json: bool
) -> Iterator[dict[str, Any]]:
    """The rows, NaN as None where they become JSON; printed one by one where streamed."""
    for row in sweep_rows:
        if stream or as_json:
            row = {key: None if _is_nan(value) else value for key, value in row.items()}
        if stream:
            print(json.dumps(row), flush=True)
        yield row


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _plot_curves(
    groups: Sequence[tuple[list[Any], dict[str, Any]]],
    costs: dict[str, Any],
    path: Path,
    options: tuple[int, int, int],
) -> None:
    from simspec.reports.speedup_curve import plot_curves, source_note, speedup_curve

    replicates, seed, jobs = options
    curves, notes = {}, {}
    for served, group in groups:
        for name, trace in group.items():
            curves[name] = speedup_curve(trace, served, costs[name], replicates, seed, jobs=jobs)
            notes[name] = source_note(trace, costs[name])
    plot_curves(curves, path, notes)


def _print(table: Any) -> None:
    from simspec.output.table import print_table
    from simspec.reports.summaries import FIGURES, NAMES, sweep_means

    sweep_rows = [
        (*(getattr(row, name) for name in NAMES), *(f"{getattr(row, f):.3f}" for f in FIGURES))
        for row in sweep_means(table).itertuples(index=False)
    ]
    headings = (*NAMES, "tokens/round", "v_d", "r_d", "HM", "speedup", "cut")
    print_table(
        headings, sweep_rows, names=len(NAMES), optional=("cut", "HM", "r_d", "v_d", "tokens/round")
    )

"""simspec check: simulator, recordings and papers against formulas."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from simspec.cli.options import Json, Traces, check_seed

PANEL = "Run and verify"

LENGTHS = (1, 4, 16)
"""Draft lengths shown."""

MOST_FAILURES = 20


def check(
    traces: Traces = None,
    as_json: Json = False,
    seed: Annotated[
        int,
        typer.Option(callback=check_seed, help="Seed of the synthetic texts and of every draw."),
    ] = 0,
    published: Annotated[
        bool, typer.Option("--published", help="Predict published speeds of engines instead.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of fetched SpecDecode-Bench and draft-length-audit files, for --published."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a PNG of predicted and published speedups.")
    ] = None,
) -> None:
    """Check the simulator against closed forms and exact distributions, recordings against Eq. 13.

    The exit code is 1 if anything disagrees.

    Example: simspec check traces/prose.parquet --json

    --published predicts published speedups of GPU engines from kernel times.
    """
    from simspec.trace.recordings import locate
    from simspec.validation.check import check as run_checks

    if published and traces:
        raise ValueError(f"--published reads no recording, {traces[0]} was given: drop one of them")
    if (data or plot) and not published:
        name = "--data" if data else "--plot"
        raise ValueError(f"{name} is of published speeds: add --published, or drop it")
    report = _published(data, plot, as_json) if published else run_checks(locate(traces), seed)
    if as_json:
        print(json.dumps(report))
    elif not published:
        _print(report)
    if not report["ok"]:
        raise typer.Exit(1)


def _published(data: Path | None, plot: Path | None, as_json: bool) -> dict[str, Any]:
    """The exam of GPU engines, then affine costs; printed unless as JSON."""
    from simspec.engines.formats import read_import
    from simspec.engines.import_kinds import ExactImport
    from simspec.output.files import check_output
    from simspec.validation.gpu_exam import exam
    from simspec.validation.gpu_report import exam_tables, plot_exam, signs
    from simspec.validation.gpu_tables import POSITIONS
    from simspec.validation.published_costs import published_costs

    if plot is not None:
        check_output(plot)
    recordings = {}
    for file in POSITIONS:
        path = file.under(data) if data is not None else None
        found = read_import("specdecode-bench", path) if path is not None else None
        if isinstance(found, ExactImport):
            recordings[file.task] = found.traces
    result, costs = exam(data, recordings), published_costs()
    if plot is not None:
        plot_exam(result, plot)
    report = costs | {
        "ok": result.ok and costs["ok"],
        "exam": result.to_dict() | {"signs": signs(result)},
    }
    if not as_json:
        for table in exam_tables(result):
            table.print()
        _print_published(report)
    return report


def _print(report: dict[str, Any]) -> None:
    from simspec.output.table import print_table
    from simspec.output.terminal import print_text

    checks = report["checks"]
    families: dict[str, list[dict[str, Any]]] = {}
    for result in checks:
        families.setdefault(result["name"].partition(":")[0], []).append(result)
    print_table(
        ("checks of", "number", "failed", "furthest, in half intervals"),
        [
            (name, len(group), sum(not c["ok"] for c in group), f"{max(map(_offset, group)):.2f}")
            for name, group in families.items()
        ],
    )
    if report["recordings"]:
        _print_recordings(report["recordings"])
    _print_papers(report["papers"])
    for result in [result for result in checks if not result["ok"]][:MOST_FAILURES]:
        figures = f"got {result['got']:.6g}, expected {result['expected']:.6g}"
        print_text(f"FAILED {result['name']}: {figures} in {result['interval']}")
    verdict = "all hold" if report["ok"] else "NOT ALL HOLD"
    risk = f"a correct simulator fails with probability {report['false_alarm']:g} at most"
    print_text(f"{len(checks)} checks: {verdict} ({risk})")


def _print_recordings(recordings: list[dict[str, Any]]) -> None:
    from simspec.output.table import print_table
    from simspec.output.terminal import print_text

    headings = ("recording", "k", "alpha", "tokens/round")
    rows = [
        (
            facts["name"],
            row["k"],
            f"{facts['alpha']:.3f}",
            f"{row['replayed']:.3f}",
            *(f"{row[f'formula_{i}']:.3f} ({row[f'deviation_{i}']:+.1%})" for i in (1, 2)),
            f"{row['ended_without_correction']} of {facts['texts']}",
        )
        for facts in recordings
        for row in facts["tokens_per_round"]
        if row["k"] in LENGTHS
    ]
    print_table(
        (*headings, "formula 1", "formula 2", "ended without correction"),
        rows,
        names=2,
        optional=("ended without correction",),
    )
    print_text(
        "The formulas' deviation from replay is no failure: "
        "real acceptance is neither independent nor constant."
    )


def _print_papers(papers: dict[str, Any]) -> None:
    from simspec.output.terminal import print_text

    several = [entry for entry in papers["eq_14_cost"] if len(entry["tables"]) > 1]
    shared = sum(entry["shared"] is not None for entry in several)
    print_text(
        f"papers: one c serves Eq. 14 in all tables for {shared} of {len(several)} "
        "(target, method, drafter) in several of them;"
    )
    misfits = papers["misfits"]
    print_text(f"{len(misfits)} of {papers['cells']} cells do not fit their own row:")
    for name in misfits:
        print_text(f"  {name}")


def _print_published(report: dict[str, Any]) -> None:
    from simspec.output.table import print_table
    from simspec.output.terminal import print_text

    print_table(
        ("table", "target", "drafter", "batch", "a round, plain steps", "source"),
        [
            (
                table["name"],
                table.get("target", "-"),
                table.get("drafter", "-"),
                table["batch"],
                f"{table['intercept']:.3f} + {table['step']:.3f} K" if "step" in table else "-",
                table.get("source", "-"),
            )
            for table in report["tables"]
        ],
        optional=("source", "drafter"),
    )
    print_table(
        ("tables", "predicted", "number", "median", "90th", "worst", "limit of the median"),
        [
            (
                result["group"],
                result["measure"],
                result["count"],
                *(f"{result[name]:.2%}" for name in ("median", "p90", "worst")),
                "-" if result["limit"] is None else f"{result['limit']:.0%}",
            )
            for result in report["errors"]
        ],
        names=2,
        optional=("limit of the median", "90th"),
    )
    print_text(
        "Errors of speedups predicted from a row's own accepted length and the round costs of "
        "other rows. A round's cost: accepted length / speedup, in plain steps."
    )
    for result in report["errors"]:
        if not result["ok"]:
            print_text(f"FAILED {result['group']}, {result['measure']}: {result['median']:.2%}")
    if not report["exam"]["ok"]:
        print_text("FAILED the exam: a median is over its goal")
    print_text("all limits hold" if report["ok"] else "NOT ALL LIMITS HOLD")


def _offset(result: dict[str, Any]) -> float:
    """How far the result lies from the middle of its interval, in half intervals."""
    low, high = result["interval"]
    half = (high - low) / 2
    return abs(result["got"] - (low + high) / 2) / half if half > 0 else 0.0

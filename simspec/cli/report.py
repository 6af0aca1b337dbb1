"""simspec report: one HTML page with the recommendation and its grounds."""

from pathlib import Path
from typing import Annotated

import typer

from simspec.cli.options import Cost, Level, MixedCosts, Replicates, Traces, print_notes


def report(  # noqa: PLR0913
    traces: Traces = None,
    out: Annotated[Path, typer.Option(help="The page, .html.")] = Path("report.html"),
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="name[:arg,...], repeatable; default: a range of families."),
    ] = None,
    cost: Cost = None,
    mixed: MixedCosts = False,
    level: Level = 0.95,
    replicates: Replicates = 4,
    seed: Annotated[int, typer.Option(help="Seed of draws and resamples.")] = 0,
) -> None:
    """Write one HTML page: which drafter and draft length, and why; it needs no network.

    Example: simspec report mine.parquet other.parquet --out report.html
    """
    from simspec.files import check_output, replacing
    from simspec.page.report import report as html_of
    from simspec.recordings import comparable_costs, locate
    from simspec.reports.comparison import Question

    paths = locate(traces)
    check_output(out, *paths.values())
    question = Question(level, seed=seed)
    costs, notes = comparable_costs(paths, cost, mixed=mixed)
    print_notes(notes)
    html = html_of(paths, costs, tuple(policy or ()), replicates, question, notes)
    with replacing(out) as temporary:
        temporary.write_text(html, encoding="utf-8")
    count = f"{len(paths)} recording{'s' * (len(paths) > 1)}"
    from simspec.terminal import print_text

    print_text(f"wrote {out}: {count}, {len(html) / 1e6:.1f} MB")

"""simspec report: one HTML page with the recommendation and its grounds."""

from pathlib import Path
from typing import Annotated

import typer

from simspec.cli.options import (
    MOST_THREADS,
    Cost,
    Level,
    MixedCosts,
    Replicates,
    Seed,
    Traces,
    at_most,
    print_notes,
)

PANEL = "Simulate"


def report(
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
    seed: Seed = 0,
    jobs: Annotated[
        int, typer.Option(callback=at_most(MOST_THREADS), help="Processes; 0: one for each core.")
    ] = 0,
) -> None:
    """Write one HTML page: which drafter and draft length, and why; it needs no network.

    Example: simspec report mine.parquet other.parquet --out report.html
    """
    from joblib import cpu_count as cores

    from simspec.output.files import check_output, replacing
    from simspec.output.terminal import print_text, progress_bar
    from simspec.page.report import all_figures, page_of
    from simspec.reports.comparison import Question
    from simspec.trace.recordings import comparable_costs, locate

    paths = locate(traces)
    check_output(out, *paths.values())
    question = Question(level, seed=seed)
    costs, notes = comparable_costs(paths, cost, mixed=mixed)
    print_notes(notes)
    work = all_figures(paths, costs, tuple(policy or ()), replicates, question, jobs or cores())
    figures = []
    with progress_bar("replaying", len(paths)) as done:
        for recording in work:
            figures.append(recording)
            done(len(figures))
    html = page_of(figures, question, notes)
    with replacing(out) as temporary:
        temporary.write_text(html, encoding="utf-8")
    count = f"{len(paths)} recording{'s' * (len(paths) > 1)}"
    print_text(f"wrote {out}: {count}, {len(html) / 1e6:.1f} MB")

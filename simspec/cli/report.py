"""simspec report: one HTML page of a decision, a recording's contents, or the papers' tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from simspec.cli.replayed import Markdown, Replayed, print_notes
from simspec.output.files import check_output, replacing
from simspec.output.frames import frame, show
from simspec.output.terminal import print_text, progress_bar
from simspec.settings import Settings, command, option

PANEL = "Decide"


@dataclass(frozen=True)
class Report(Settings):
    """Settings of a report, see its options."""

    on: Replayed = field(default_factory=Replayed)
    out: Annotated[Path, option("The page, .html.")] = Path("report.html")
    show: Annotated[bool, option("Print what the recordings hold instead.", "--show")] = False
    paper: Annotated[
        tuple[str, ...],
        option(
            "Print tables of the papers instead, repeatable: eesd-5, glide-1, eagle-1, s2d-2, "
            "claims, or all."
        ),
    ] = ()
    as_markdown: Markdown = False


@command
def report(settings: Report) -> None:
    """Write one HTML page: which drafter and draft length, and why; it needs no network.

    Example: simspec report mine.parquet other.parquet --out report.html

    Example: simspec report --show mine.parquet

    Example: simspec report --paper eesd-5
    """
    from simspec.trace.recordings import locate

    if settings.paper:
        _papers(settings)
        return
    paths = locate(settings.on.traces or None)
    if settings.show:
        _show(settings, paths)
    else:
        _page(settings, paths)


def _show(settings: Report, paths: Mapping[str, Path]) -> None:
    from simspec.reports.summaries import contents_frame, trace_summary
    from simspec.trace.trace import load_trace

    traces = {name: load_trace(path) for name, path in paths.items()}
    if settings.on.as_json:  # a row a recording; people read a line a field
        show(frame([{"recording": n} | trace_summary(t) for n, t in traces.items()]), as_json=True)
    else:
        frames = [contents_frame(name, trace) for name, trace in traces.items()]
        show(frames, as_markdown=settings.as_markdown)


def _papers(settings: Report) -> None:
    from simspec.papers import TABLES
    from simspec.papers.recorded import Recordings
    from simspec.trace.recordings import CHECKOUT

    names = list(TABLES) if "all" in settings.paper else list(settings.paper)
    if unknown := [name for name in names if name not in TABLES]:
        raise ValueError(f"there is no table {unknown[0]!r}: expected all, {', '.join(TABLES)}")
    recordings = Recordings(CHECKOUT, seed=settings.on.seed, draws=settings.on.replicates)
    frames = [TABLES[name](recordings) for name in names]
    show(frames, settings.on.as_json, settings.as_markdown, seed=settings.on.seed, level=0.95)


def _page(settings: Report, paths: Mapping[str, Path]) -> None:
    from joblib import cpu_count

    from simspec.cost.table import CostTable
    from simspec.cost.why import why_frame
    from simspec.reports.comparison import Question
    from simspec.reports.page import RecordingFigures, all_figures, page_of
    from simspec.reports.speedup_curve import check_plots
    from simspec.trace.recordings import comparable_costs, cost_notes, whole_costs

    on, out = settings.on, settings.out
    check_plots()
    check_output(out, *paths.values())
    question = Question(on.level, seed=on.seed)
    tables = any(isinstance(of, CostTable) for of in whole_costs(paths, on.cost).values())
    batch = 1 if tables else None  # the page is of one request at a time
    costs, notes = comparable_costs(paths, on.cost, batch, mixed=on.mixed_costs)
    print_notes(notes)
    figures = []
    with progress_bar("replaying", len(paths)) as done:
        for of in all_figures(paths, costs, on.policy, on.replicates, question, cpu_count()):
            figures.append(of)
            done(len(figures))
    html = page_of(figures, question, [*cost_notes(paths, costs, on.cost), *notes])
    with replacing(out) as temporary:
        temporary.write_text(html, encoding="utf-8")
    if on.as_json:
        priced = [of for of in figures if isinstance(of, RecordingFigures)]
        show([why_frame(of.whys, of.name) for of in priced], True, page=str(out))
        return
    count = f"{len(paths)} recording{'s' * (len(paths) > 1)}"
    print_text(f"wrote {out}: {count}, {len(html) / 1e6:.1f} MB")

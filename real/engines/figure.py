"""A figure of runs on engines: predicted and measured speedup by draft length."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

from real.engines.summary import RunSummary
from real.files import replacing
from simspec.output.names import label_text

COLUMNS = 3


def draw_runs(summaries: Sequence[RunSummary], path: Path) -> None:
    """Writes a PNG with a panel a run: predicted as a line with its band, measured as points."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(summaries))
    rows = ceil(len(summaries) / columns)
    figure = Figure(figsize=(3.6 * columns, 2.6 * rows + 0.5), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(summaries) :]:
        axes.set_visible(False)
    for axes, summary in zip(panels, summaries):
        _draw_run(axes, summary)
    figure.supylabel("speedup over plain decoding", fontsize="small")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="small")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def _draw_run(axes, summary: RunSummary) -> None:
    found = summary.table.rows
    ks = [row.k for row in found]
    axes.axhline(1.0, color="0.5", lw=0.8)
    axes.plot(ks, [row.predicted for row in found], color="C0", label="predicted by replay, 95%")
    held = [(row.k, row.predicted_interval) for row in found if row.predicted_interval is not None]
    if held:
        lows, highs = ([getattr(e, end) for _, e in held] for end in ("low", "high"))
        axes.fill_between([k for k, _ in held], lows, highs, color="C0", alpha=0.2, lw=0)
    bars = [
        (row.measured - interval.low, interval.high - row.measured) if interval else (0.0, 0.0)
        for row in found
        for interval in (row.measured_interval,)
    ]
    axes.errorbar(
        ks, [row.measured for row in found], list(zip(*bars)), fmt="o", ms=4, color="C1",
        ecolor="C1", elinewidth=1, capsize=2, label="measured on the engine, 95%",
    )  # fmt: skip
    axes.set_title(label_text(f"{summary.engine}, {summary.drafter}"), fontsize="small")
    axes.set_xlabel("draft length K", fontsize="small")
    axes.set_xticks(ks)
    axes.tick_params(labelsize="small")

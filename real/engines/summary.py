"""Runs on engines, a line and a panel each: predicted and measured speedups, or passes alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from real.engines.compare import compare_rows
from real.engines.measure import Speedup, SpeedupTable, speedup_table
from real.engines.rows import read_rows
from real.engines.waves import StepPrices
from real.files import replacing
from simspec import Trace
from simspec.cost.table import load_cost
from simspec.output.names import label_text
from simspec.output.table import Table

ROWS = (".rows.jsonl", ".rows.jsonl.xz")
COLUMNS = 3
"""Panels of a figure's row."""
HEADINGS = (
    "engine", "drafter", "prompts", "plain pass", "K", "predicted [95%]", "measured [95%]",
    "advice", "error: median, 90%", "passes compared",
)  # fmt: skip

PASSES = (
    "engine", "drafter", "in flight", "K", "prompts", "texts", "passes", "exceptions", "near-ties",
    "left out",
)  # fmt: skip


@dataclass(frozen=True)
class RunSummary:
    """Predictions and measurements of a run of one engine with one drafter.

    | field | meaning |
    | --- | --- |
    | engine, drafter | with version and batch; the drafting method and its n-gram lengths |
    | prompts | that were timed |
    | plain | seconds of a plain pass, of the whole batch |
    | drafting | the draft length above 0 that was predicted best, with its speedups |
    | table | speedups of all draft lengths |
    | passes, equal | compared with the replay, and of these equal to it |
    | differ | requests whose text or passes differ from the replay |
    | exceptions | of these, without an explanation |
    | explained | those that differ with one, in words |
    """

    engine: str
    drafter: str
    prompts: int
    plain: float
    drafting: Speedup
    table: SpeedupTable
    passes: int
    differ: int
    exceptions: int
    explained: str

    @property
    def errors(self) -> list[float]:
        """Relative errors of the predicted speedups of all draft lengths above 0, ascending."""
        return sorted(abs(row.error) for row in self.table.rows if row.k)

    def cells(self) -> tuple[str, ...]:
        """Cells of a table with HEADINGS."""
        table, best = self.table, self.drafting
        advice, state = advised(table)
        replayed = f"{self.passes:,}, equal"
        if self.differ:
            replayed = f"{self.passes:,}; {self.exceptions} exceptions, {self.explained}"
        return (
            self.engine, self.drafter, str(self.prompts), f"{1000 * self.plain:.1f} ms",
            length_name(best.name, table.scheduled),
            _figure(best.predicted, best.predicted_interval),
            _figure(best.measured, best.measured_interval), f"{advice}, {state}",
            f"{np.median(self.errors):.1%} to {np.quantile(self.errors, 0.9):.1%}",
            replayed,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        values = asdict(self) | {"table": self.table.to_dict()}
        return values | {"drafting": asdict(self.drafting), "errors": self.errors}


def length_name(k: int | str, scheduled: bool) -> str:
    """Name of a draft length or policy in tables: a schedule goes by its longest."""
    return "schedule" if scheduled and k else str(k)


def arm_text(arm: int | str) -> str:
    """A draft length or policy in sentences."""
    return arm if isinstance(arm, str) else f"K = {arm}"


def advised(table: SpeedupTable) -> tuple[str, str]:
    """(the recommendation, whether the measurement confirms it)."""

    def named(k: int | str) -> str:
        return "the schedule" if table.scheduled and k else arm_text(k)

    advice = named(table.recommended) if table.recommended else "do not draft"
    return advice, "confirmed" if table.confirmed else f"{named(table.best)} is faster"


def speedups_shown(table: SpeedupTable) -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
    """(title, headings, cells) of the predicted and measured speedups of one run."""
    cells = [
        (
            length_name(row.name, table.scheduled),
            _figure(row.predicted, row.predicted_interval, 3),
            _figure(row.measured, row.measured_interval, 3),
            f"{row.error:+.1%}",
        )
        for row in table.rows
    ]
    advice, state = advised(table)
    state = state if table.confirmed else f"not confirmed: {state}"
    batch = f"batch {table.batch}, " if table.batch > 1 else ""
    title = (
        f"{batch}recommended: {advice}, {state}; {table.prompts} prompts, {table.repeats} repeats"
    )
    return title, ("K", "predicted [95%]", "measured [95%]", "error"), cells


def positions_shown(
    positions: Mapping[int, Sequence[tuple[int, int, int]]],
) -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
    """(title, headings, cells) of `accepted_by_position`: shares of drafts, by draft length."""
    longest = max(positions, default=0)
    cells = []
    for k, counts in positions.items():
        shares = [
            f"{a / n:.3f}" if a == b else f"{a / n:.3f}, predicted {b / n:.3f}"
            for n, a, b in counts
            if n
        ]
        drafts = str(counts[0][0])
        cells.append((str(k), drafts, *shares, *["-"] * (longest - len(shares))))
    headings = ("K", "drafts", *(f"accepted to {j}" for j in range(1, longest + 1)))
    return "drafts whose first tokens are all accepted", headings, cells


def _figure(value: float, interval: Any, digits: int = 2) -> str:
    limits = f" [{interval.low:.{digits}f}, {interval.high:.{digits}f}]" if interval else ""
    return f"{value:.{digits}f}{limits}"


def cost_of_rows(path: Path) -> Path:
    """NAME.cost.json next to NAME.rows.jsonl or NAME.rows.jsonl.xz; ValueError for other names."""
    for ending in ROWS:
        if path.name.endswith(ending):
            return path.with_name(path.name.removesuffix(ending) + ".cost.json")
    raise ValueError(f"{path} has another name than NAME{' or NAME'.join(ROWS)}: rename it")


def has_cost(path: Path) -> bool:
    """Whether these rows have a cost file next to them."""
    return path.name.endswith(ROWS) and cost_of_rows(path).exists()


def run_summary(path: Path, recording: Trace | None = None) -> RunSummary:
    """The summary of a run, with the costs next to it; errors of its parts.

    A recording names the texts; drafts of a model are compared with the recording of its drafts.
    """
    about, rows = read_rows(path)
    cost = load_cost(cost_of_rows(path))
    result = compare_rows(about, rows, recording)
    table = speedup_table(about, rows, cost, recording)
    drafting = [row for row in table.rows if row.k]
    if not drafting:
        raise ValueError(f"{path} holds plain decoding alone: run it at draft lengths above 0")
    batch = f", batch {table.batch}" if table.batch > 1 else ""
    return RunSummary(
        f"{about['engine']} {about['version']}{batch}",
        drafter_text(about["draft"]),
        table.prompts,
        float(StepPrices.of(cost).seconds(np.array([table.batch]))[0]),
        max(drafting, key=lambda row: row.predicted),
        table,
        result.passes,
        len(result.differences),
        len(result.exceptions),
        result.explained,
    )


def drafter_text(draft: Mapping[str, Any] | None) -> str:
    """The drafting method of a run's description, in words."""
    if draft is None:
        return "none"
    if draft.get("model") is not None:
        return "draft model"
    if draft.get("eagle") is not None:
        return "EAGLE head"
    if draft.get("suffix") is not None:
        return "suffix decoding"
    least, most = draft["ngram_min"], draft["ngram_max"]
    return f"n-gram {least}" if least == most else f"n-gram {least} to {most}"


def summary_table(summaries: Sequence[RunSummary]) -> Table:
    """A row a run."""
    return Table(
        HEADINGS,
        [summary.cells() for summary in summaries],
        names=2,
        notes=(
            "K: the draft length above 0 predicted best; predicted and measured: its speedup over "
            "plain decoding after the prompt; errors are over all draft lengths.",
        ),
        optional=("prompts",),
    )


def passes_table(paths: Sequence[Path], recording: Trace | None = None) -> tuple[Table, list[dict]]:
    """(a row a run of its texts and passes against the replay, the same as plain values)."""
    cells, values = [], []
    for path in paths:
        about, rows = read_rows(path)
        result = compare_rows(about, rows, recording)
        near = sum(difference.near_tie for difference in result.differences)
        prompts = len({row.request.id for row in rows})
        ks = ", ".join(str(policy or k) for k, policy in sorted({row.arm for row in rows}))
        cells.append(
            (
                f"{about['engine']} {about['version']}", drafter_text(about["draft"]),
                str(about["plan"]["concurrent"]), ks, str(prompts), f"{result.requests:,}",
                f"{result.passes:,}", str(len(result.exceptions)), str(near), str(result.left_out),
            )
        )  # fmt: skip
        values.append({"path": str(path), "about": about, "passes": result.to_dict()})
    return Table(PASSES, cells, names=2, optional=("prompts", "left out")), values


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
    found = [row for row in summary.table.rows if not row.policy]
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

"""Runs on engines as tables: predicted and measured speedups, passes, and a panel each."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from real.engines.compare import RunCheck, compare_rows
from real.engines.measure import Speedup, SpeedupTable, StepPrices, arm_text, speedup_table
from real.engines.rows import ROWS, read_rows
from simspec import Trace
from simspec.cost.table import load_cost
from simspec.numerics.stats import Estimate
from simspec.output.frames import DataFrame, frame
from simspec.reports.speedup_curve import plot_curves

PACKED = (ROWS, f"{ROWS}.xz")
PREDICTED, MEASURED = "predicted [95%]", "measured [95%]"


@dataclass(frozen=True)
class RunSummary:
    """Predictions and measurements of a run of one engine with one drafter.

    plain: seconds of a plain pass, of the whole batch; drafting: the draft length above 0 that was
    predicted best; differ: requests whose text or passes differ from the replay, exceptions those
    of them without an explanation, which `explained` has of the others.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"table": self.table.to_dict(), "errors": self.errors}


def length_name(k: int | str, scheduled: bool) -> str:
    """Name of a draft length or policy in tables: a schedule goes by its longest."""
    return "schedule" if scheduled and k else str(k)


def advised(table: SpeedupTable) -> tuple[str, str]:
    """(the recommendation, whether the measurement confirms it)."""

    def named(k: int | str) -> str:
        return "the schedule" if table.scheduled and k else arm_text(k)

    advice = named(table.recommended) if table.recommended else "do not draft"
    if table.doubt:
        return advice, f"not settled: {table.doubt}"
    return advice, "confirmed" if table.confirmed else f"{named(table.best)} is faster"


def speedup_frame(table: SpeedupTable, priced: str = "") -> DataFrame:
    """The predicted and measured speedups of one run; priced: where the costs come from."""
    advice, state = advised(table)
    state = state if table.confirmed or table.doubt else f"not confirmed: {state}"
    batch = f"batch {table.batch}, " if table.batch > 1 else ""
    return frame(
        [
            {
                "K": length_name(row.name, table.scheduled),
                PREDICTED: row.predicted_interval or row.predicted,
                MEASURED: row.measured_interval or row.measured,
                "error": f"{row.error:+.1%}",
            }
            for row in table.rows
        ],
        title=f"{batch}recommended: {advice}, {state}; {table.prompts} prompts, {table.repeats} "
        "repeats" + (f"; costs of {priced}" if priced else ""),
        formats={PREDICTED: ".3f", MEASURED: ".3f"},
    )


def passes_frame(about: Mapping[str, Any], result: RunCheck) -> DataFrame:
    """What one run's passes count by draft length or policy, beside the replay."""
    scheduled = bool(about.get("schedule"))
    rows = [
        (
            length_name(k, scheduled),
            *(f"{a}" if a == b else f"{a}, predicted {b}" for a, b in counters.values()),
        )
        for k, counters in result.counters.items()
    ]
    return frame(
        rows, ("K", "passes", "with a draft", "drafted", "accepted"),
        title=f"{about['engine']} {about['version']}: {result.requests} requests, {result.passes} "
        f"passes; {len(result.exceptions)} exceptions, {result.explained}, {result.left_out} left "
        "out",
    )  # fmt: skip


def summary_frame(summaries: Sequence[RunSummary]) -> DataFrame:
    """A row a run: its best draft length above 0, the advice, errors over all lengths, passes."""
    rows = []
    for run in summaries:
        best, replayed = run.drafting, f"{run.passes:,}, equal"
        if run.differ:
            replayed = f"{run.passes:,}; {run.exceptions} exceptions, {run.explained}"
        errors = f"{np.median(run.errors):.1%} to {np.quantile(run.errors, 0.9):.1%}"
        rows.append(
            {
                "engine": run.engine,
                "drafter": run.drafter,
                "prompts": run.prompts,
                "plain pass": f"{1000 * run.plain:.1f} ms",
                "K": length_name(best.name, run.table.scheduled),
                PREDICTED: best.predicted_interval or best.predicted,
                MEASURED: best.measured_interval or best.measured,
                "advice": ", ".join(advised(run.table)),
                "error: median, 90%": errors,
                "passes compared": replayed,
            }
        )
    formats = {PREDICTED: ".2f", MEASURED: ".2f"}
    return frame(rows, names=2, formats=formats, optional=("prompts",))


def checks_frame(checks: Sequence[tuple[Mapping[str, Any], Sequence[Any], RunCheck]]) -> DataFrame:
    """A row a run, (about, rows, check), of its texts and passes against the replay."""
    rows = [
        {
            "engine": f"{about['engine']} {about['version']}",
            "drafter": drafter_text(about["draft"]),
            "in flight": about["plan"]["concurrent"],
            "K": ", ".join(str(policy or k) for k, policy in sorted({row.arm for row in held})),
            "prompts": len({row.request.id for row in held}),
            "texts": f"{check.requests:,}",
            "passes": f"{check.passes:,}",
            "exceptions": len(check.exceptions),
            "near-ties": sum(difference.near_tie for difference in check.differences),
            "left out": check.left_out,
        }
        for about, held, check in checks
    ]
    return frame(rows, names=2, optional=("prompts", "left out"))


def cost_of_rows(path: Path) -> Path:
    """NAME.cost.json next to NAME.rows.jsonl or NAME.rows.jsonl.xz; ValueError for other names."""
    for ending in PACKED:
        if path.name.endswith(ending):
            return path.with_name(path.name.removesuffix(ending) + ".cost.json")
    raise ValueError(f"{path} has another name than NAME{' or NAME'.join(PACKED)}: rename it")


def has_cost(path: Path) -> bool:
    """Whether these rows have a cost file next to them."""
    return path.name.endswith(PACKED) and cost_of_rows(path).exists()


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


def draw_runs(summaries: Sequence[RunSummary], path: Path) -> None:
    """Writes a PNG with a panel a run: predicted as a curve with its band, measured as points."""
    predicted, measured = dict[str, dict[int, Estimate]](), dict[str, dict[int, Estimate]]()
    for run in summaries:
        name = f"{run.engine}, {run.drafter}"
        name += f" ({len(predicted) + 1})" if name in predicted else ""
        rows = [row for row in run.table.rows if not row.policy]
        predicted[name] = {r.k: _interval(r.predicted, r.predicted_interval) for r in rows}
        measured[name] = {r.k: _interval(r.measured, r.measured_interval) for r in rows}
    plot_curves(predicted, measured, path)


def _interval(value: float, interval: Estimate | None) -> Estimate:
    return interval or Estimate(value, value, value, 0.95, 0)

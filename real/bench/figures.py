"""Figures of races, policies and scorecards."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from real.bench.race import PLAIN
from real.bench.race_rows import RaceRow
from real.bench.scorecard import MEDIAN_BOUND, Scorecard
from real.files import replacing
from real.prompts import ALL, LOW_REPEAT
from simspec import CostModel, Trace
from simspec.numerics.stats import Estimate
from simspec.output.names import label_text
from simspec.replay.evaluation import evaluate


def draw_race(rows: Sequence[RaceRow], device: str, path: Path) -> None:
    """Writes a PNG: times plain decoding, on all prompts and on those that repeat little."""
    from matplotlib.figure import Figure

    ranked = sorted((r for r in rows if r.group == ALL), key=lambda r: r.speedup or 0.0)
    names = [r.contestant for r in ranked]
    figure = Figure(figsize=(11, 0.3 * len(names) + 2.5), layout="constrained")
    for axes, group in zip(figure.subplots(1, 2, sharey=True), (ALL, LOW_REPEAT)):
        by_name = {r.contestant: r for r in rows if r.group == group}
        shown = [by_name[name] for name in names]
        values = [r.speedup or 0.0 for r in shown]
        colors = ["C0" if "=" in name else "C1" if name == PLAIN else "0.6" for name in names]
        bars = list(zip(*map(error_bar, shown)))
        axes.barh(range(len(names)), values, xerr=bars, color=colors, error_kw={"lw": 0.8})
        axes.axvline(1.0, color="C1", lw=0.8)
        axes.set_yticks(range(len(names)), [*map(label_text, names)], fontsize="small")
        axes.set(
            xlabel="times plain decoding, end to end (bars: 95% intervals over prompts)",
            title=label_text(f"{group}: {by_name[PLAIN].prompts} prompts"),
        )
    figure.suptitle(
        f"{device} (blue: decode loop with drafter=policy, orange: without drafts, "
        "grey: transformers)",
        fontsize="small",
    )
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def error_bar(row: RaceRow) -> tuple[float, float]:
    """Lengths of the speedup's interval below and above it; 0 where there is none."""
    if row.speedup is None or row.low is None or row.high is None:
        return 0.0, 0.0
    return max(row.speedup - row.low, 0.0), max(row.high - row.speedup, 0.0)


Measured = tuple[str, float, float | None, float | None]
"""(policy, speedup, ends of its interval or None) of a real run."""


def speedup_intervals(
    traces: Mapping[str, Trace],
    policies: Sequence[str],
    costs: Mapping[str, CostModel],
    replicates: int = 4,
) -> dict[str, dict[str, Estimate]]:
    """recording -> policy -> speedup with its 95% interval over prompts and prices."""
    intervals: dict[str, dict[str, Estimate]] = {}
    for name, trace in traces.items():
        found = evaluate(trace, policies, costs[name], replicates)
        intervals[name] = {policy: found.speedup(policy) for policy in found.seconds}
    return intervals


def draw_speedups(
    intervals: Mapping[str, Mapping[str, Estimate]], measured: Mapping[str, Measured], path: Path
) -> None:
    """Writes a PNG: per recording the modeled speedups, the largest on top, and stars for runs."""
    from matplotlib.figure import Figure

    rows = max(map(len, intervals.values()))
    columns = min(2, len(intervals))
    height = 0.9 + 0.24 * rows
    lines = -(-len(intervals) // columns)
    figure = Figure(figsize=(4.6 * columns, height * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, squeeze=False).flatten()
    for panel in panels[len(intervals) :]:
        panel.set_visible(False)
    for panel, (recording, policies) in zip(panels, intervals.items()):
        _draw_panel(panel, recording, policies, measured.get(recording))
    for panel in panels[max(len(intervals) - columns, 0) : len(intervals)]:
        panel.set_xlabel("speedup over plain decoding")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="small")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def _draw_panel(
    panel, recording: str, policies: Mapping[str, Estimate], measured: Measured | None
) -> None:
    names = sorted(policies, key=lambda name: policies[name].value)
    values = [policies[name].value for name in names]
    errors = [  # rounding may put the end of a narrow interval beyond its value
        [max(0.0, policies[name].value - policies[name].low) for name in names],
        [max(0.0, policies[name].high - policies[name].value) for name in names],
    ]
    panel.axvline(1, color="grey", lw=0.8)
    panel.errorbar(
        values, range(len(names)), xerr=errors, fmt="o", ms=3.5, lw=1, capsize=2, color="C0",
        label="modeled, 95% interval over prompts and prices",
    )  # fmt: skip
    if measured is not None:
        policy, speedup, low, high = measured
        bars = [[max(0.0, speedup - (low or speedup))], [max(0.0, (high or speedup) - speedup)]]
        panel.errorbar(
            [speedup], [names.index(policy)], xerr=bars, fmt="*", ms=11, lw=1, capsize=2,
            color="C1", mec="black", mew=0.6, label="measured in a real run, 95% interval",
        )  # fmt: skip
    panel.set_yticks(range(len(names)), [*map(label_text, names)], fontsize="small")
    panel.set_title(label_text(recording), fontsize="medium")
    panel.grid(axis="x", alpha=0.3)


PHASES = ("drafting", "verification", "policy", "other")


def draw_scorecard(scorecard: Scorecard, path: Path) -> None:
    """Writes a PNG: predicted against measured with the median bound shaded, and phases by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 0.24 * len(scorecard.rows) + 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    _draw_speedups(left, scorecard)
    _draw_phases(right, scorecard)
    figure.legend(
        *right.get_legend_handles_labels(),
        loc="outside lower right",
        ncols=len(PHASES),
        fontsize="small",
    )
    figure.suptitle(
        f"predicted against measured: {scorecard.device}, {scorecard.dtype}, "
        f"{scorecard.repeats} runs of every policy",
        fontsize="medium",
    )
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def _draw_speedups(axes, scorecard: Scorecard) -> None:
    """Points of policies, with 95% intervals of both speedups."""
    shown = scorecard.policies
    figures = [x for r in shown for x in (r.speedup, r.speedup_measured)]
    ends = np.array([min(figures), max(figures)]) * (0.95, 1.05)
    bound = MEDIAN_BOUND
    axes.set(box_aspect=1)
    axes.fill_between(
        ends, ends * (1 - bound), ends * (1 + bound), color="0.88", label=f"within {bound:.0%}"
    )
    axes.plot(ends, ends, color="0.5", lw=0.8)
    for i, name in enumerate(dict.fromkeys(r.recording for r in shown)):
        rows = [r for r in shown if r.recording == name]
        axes.errorbar(
            [r.speedup_measured for r in rows],
            [r.speedup for r in rows],
            xerr=_bars([(r.speedup_measured, r.measured_low, r.measured_high) for r in rows]),
            yerr=_bars([(r.speedup, r.speedup_low, r.speedup_high) for r in rows]),
            fmt="o",
            ms=4,
            lw=0.8,
            color=f"C{i % 10}",
            label=label_text(name),
        )
    axes.set(
        xlabel="measured times plain decoding (bars: 95% intervals)", ylabel="predicted times plain"
    )
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), fontsize="small")
    axes.set_anchor("N")


def _bars(figures) -> np.ndarray:
    """float64 `[2, N]`: lengths below and above of (value, low, high); 0 without an interval."""
    return np.array([(0, 0) if low is None else (x - low, high - x) for x, low, high in figures]).T


def _draw_phases(axes, scorecard: Scorecard) -> None:
    rows = scorecard.rows
    y = np.arange(len(rows))
    for shift, field, alpha in ((-0.2, "phases_measured", 1.0), (0.2, "phases", 0.45)):
        seconds = np.array([getattr(r, field) for r in rows])
        per_token = seconds / np.array([[r.tokens] for r in rows]) * 1e3
        start = np.zeros(len(y))
        for p, name in enumerate(PHASES):
            label = name if shift < 0 else None
            width = per_token[:, p]
            axes.barh(y + shift, width, 0.38, left=start, color=f"C{p}", alpha=alpha, label=label)
            start = start + width
    axes.set_yticks(y, [label_text(f"{r.recording} {r.policy}") for r in rows], fontsize="x-small")
    axes.set_ylim(len(y) - 0.4, -0.6)
    axes.set(
        xlabel="milliseconds a token; upper bar measured, lower predicted", title="time by phase"
    )

"""The figure of a scorecard: speedups predicted against measured, and time by phase."""

from pathlib import Path

import numpy as np

from real.bench.scorecard import MEDIAN_BOUND, Scorecard
from real.files import replacing
from simspec.output.names import label_text

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

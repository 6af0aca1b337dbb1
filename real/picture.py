"""Figures of a scorecard: predicted against measured, and seconds by phase."""

from pathlib import Path

import numpy as np

from real.files import replacing
from real.scorecard import NEAR, Scorecard

PHASES = ("drafting", "verification", "policy", "other")


def draw(found: Scorecard, path: Path) -> None:
    """Writes a PNG: tokens a second predicted against measured, the 3% band shaded; and phases of every row, measured beside predicted."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 0.24 * len(found.rows) + 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    ends = np.array([min(min(r.predicted, r.measured) for r in found.rows), max(max(r.predicted, r.measured) for r in found.rows)])
    ends = ends * (0.95, 1.05)
    left.set(xlim=ends, ylim=ends, box_aspect=1)
    left.fill_between(ends, ends * (1 - NEAR), ends * (1 + NEAR), color="0.88", label=f"within {NEAR:.0%}")
    left.plot(ends, ends, color="0.5", lw=0.8)
    for i, name in enumerate(dict.fromkeys(r.recording for r in found.rows)):
        rows = [r for r in found.rows if r.recording == name]
        spread = [(r.noise or 0.0) * r.measured for r in rows]
        across, up = [r.measured for r in rows], [r.predicted for r in rows]
        left.errorbar(across, up, xerr=spread, fmt="o", ms=4, lw=0.8, color=f"C{i % 10}", label=name)
    left.set(xlabel="measured tokens a second (bars: deviation of repeats)", ylabel="predicted")
    left.legend(loc="upper left", bbox_to_anchor=(0, -0.12), fontsize="small")
    left.set_anchor("N")
    at = np.arange(len(found.rows))
    for shift, field, alpha in ((-0.2, "phases_measured", 1.0), (0.2, "phases", 0.45)):
        table = np.array([getattr(r, field) for r in found.rows]) / np.array([[r.tokens] for r in found.rows]) * 1e3
        start = np.zeros(len(at))
        for p, name in enumerate(PHASES):
            label = name if shift < 0 else None
            right.barh(at + shift, table[:, p], 0.38, left=start, color=f"C{p}", alpha=alpha, label=label)
            start = start + table[:, p]
    right.set_yticks(at, [f"{r.recording} {r.policy}" for r in found.rows], fontsize="x-small")
    right.set_ylim(len(at) - 0.4, -0.6)
    right.set(xlabel="milliseconds a token; upper bar measured, lower predicted", title="time by phase")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=len(PHASES), fontsize="small")
    figure.suptitle(f"predicted against measured: {found.device}, {found.dtype}, {found.repeats} runs of every policy", fontsize="medium")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)

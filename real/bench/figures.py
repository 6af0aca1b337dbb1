"""Figures of a scorecard: predicted against measured, and seconds by phase; of a race: tokens a second."""

from pathlib import Path

import numpy as np

from real.bench.scorecard import MEDIAN_BOUND, Scorecard
from real.files import replacing
from real.prompts import ALL, LOW_REPEAT

PHASES = ("drafting", "verification", "policy", "other")


def draw(found: Scorecard, path: Path) -> None:
    """Writes a PNG: tokens a second predicted against measured, the 3% band shaded; and phases of every row, measured beside predicted."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 0.24 * len(found.rows) + 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    ends = np.array(
        [
            min(min(r.predicted, r.measured) for r in found.rows),
            max(max(r.predicted, r.measured) for r in found.rows),
        ]
    )
    ends = ends * (0.95, 1.05)
    left.set(xlim=ends, ylim=ends, box_aspect=1)
    left.fill_between(
        ends,
        ends * (1 - MEDIAN_BOUND),
        ends * (1 + MEDIAN_BOUND),
        color="0.88",
        label=f"within {MEDIAN_BOUND:.0%}",
    )
    left.plot(ends, ends, color="0.5", lw=0.8)
    for i, name in enumerate(dict.fromkeys(r.recording for r in found.rows)):
        rows = [r for r in found.rows if r.recording == name]
        spread = [(r.noise or 0.0) * r.measured for r in rows]
        across, up = [r.measured for r in rows], [r.predicted for r in rows]
        left.errorbar(
            across, up, xerr=spread, fmt="o", ms=4, lw=0.8, color=f"C{i % 10}", label=name
        )
    left.set(xlabel="measured tokens a second (bars: deviation of repeats)", ylabel="predicted")
    left.legend(loc="upper left", bbox_to_anchor=(0, -0.12), fontsize="small")
    left.set_anchor("N")
    at = np.arange(len(found.rows))
    for shift, field, alpha in ((-0.2, "phases_measured", 1.0), (0.2, "phases", 0.45)):
        table = (
            np.array([getattr(r, field) for r in found.rows])
            / np.array([[r.tokens] for r in found.rows])
            * 1e3
        )
        start = np.zeros(len(at))
        for p, name in enumerate(PHASES):
            label = name if shift < 0 else None
            right.barh(
                at + shift, table[:, p], 0.38, left=start, color=f"C{p}", alpha=alpha, label=label
            )
            start = start + table[:, p]
    right.set_yticks(at, [f"{r.recording} {r.policy}" for r in found.rows], fontsize="x-small")
    right.set_ylim(len(at) - 0.4, -0.6)
    right.set(
        xlabel="milliseconds a token; upper bar measured, lower predicted", title="time by phase"
    )
    figure.legend(
        *right.get_legend_handles_labels(),
        loc="outside lower right",
        ncols=len(PHASES),
        fontsize="small",
    )
    figure.suptitle(
        f"predicted against measured: {found.device}, {found.dtype}, {found.repeats} runs of every policy",
        fontsize="medium",
    )
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def draw_race(found, device: str, path: Path) -> None:
    """Writes a PNG of a race's rows (`real.bench.ranking.Row`): tokens a second, on all prompts and on those that loop little."""
    from matplotlib.figure import Figure

    names = [
        r.contestant
        for r in sorted((r for r in found if r.group == ALL), key=lambda r: r.rate or 0.0)
    ]
    figure = Figure(figsize=(11, 0.3 * len(names) + 2.5), layout="constrained")
    for axes, group in zip(figure.subplots(1, 2, sharey=True), (ALL, LOW_REPEAT)):
        by = {r.contestant: r for r in found if r.group == group}
        rates = [by[name].rate or 0.0 for name in names]
        spread = [(by[name].spread or 0.0) * rate for name, rate in zip(names, rates)]
        colours = ["C0" if "=" in name else "C1" if name == "plain" else "0.6" for name in names]
        axes.barh(range(len(names)), rates, xerr=spread, color=colours, error_kw={"lw": 0.8})
        axes.axvline(by["plain"].rate or 0.0, color="C1", lw=0.8)
        axes.set_yticks(range(len(names)), names, fontsize="small")
        axes.set(
            xlabel="tokens a second, whole calls", title=f"{group}: {by['plain'].prompts} prompts"
        )
    figure.suptitle(
        f"{device} (blue: drafter=policy of ours, orange: our loop without drafts, grey: transformers)",
        fontsize="small",
    )
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)

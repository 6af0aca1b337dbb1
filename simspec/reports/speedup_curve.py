"""Speedup against draft length, compared with adaptive policies (EESD Figure 3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any

from simspec.numerics.stats import MIN_PROMPTS, Estimate
from simspec.output.files import replacing
from simspec.output.names import label_text
from simspec.policies import CLAIRVOYANT
from simspec.policies.fixed import fixed
from simspec.replay.evaluation import Evaluation, evaluate
from simspec.replay.sweep import cost_model
from simspec.trace.trace import Trace


@dataclass(frozen=True)
class Point:
    """A policy's modelled speedup on a recording; K is a fixed draft length, None if adaptive.

    Of fewer than 8 prompts the interval is the value alone: low = high = value.
    """

    policy: str
    K: int | None
    speedup: Estimate


def speedup_curve(
    trace: Trace, policies: Sequence[Any], cost: Any, replicates: int = 4, seed: int = 0
) -> list[Point]:
    """Points of fixed(0) to as deep as trace and cost reach, then of policies of no fixed length.

    speedup = sum over prompts of L T_plain / sum of modelled seconds, mean of replicates, resampled
    by prompt and by replicate of the costs (`stats.ratio`). Policies as for `sweep`; ValueError as
    there.
    """
    longest = min(trace.K, getattr(cost, "K", trace.K))
    lengths = {fixed(k).name: k for k in range(longest + 1)}
    adaptive = [p for p in policies if not str(getattr(p, "name", p)).startswith("fixed:")]
    cost = cost_model(cost, trace)
    policies = [*map(fixed, range(longest + 1)), *adaptive]
    found = evaluate(trace, policies, cost, replicates, seed)
    return [point(found, name, lengths.get(name), 0.95, seed) for name in found.seconds]


def point(found: Evaluation, policy: str, K: int | None, level: float, seed: int) -> Point:
    """The point of an evaluated policy."""
    speedup = found.speedup(policy, level=level, seed=seed)
    if speedup.prompts < MIN_PROMPTS and not found.unsettled:
        speedup = replace(speedup, low=speedup.value, high=speedup.value)
    return Point(policy, K, speedup)


ACROSS = 4
"""Most panels side by side."""


def source_note(trace: Trace, cost: Any) -> str:
    """Device and dtype of the recording, and the device that was priced, or the cost ratio."""
    device, dtype = trace.meta.device or "no device named", trace.meta.dtype
    price = (
        f"costs of {cost.device or 'no device named'}"
        if hasattr(cost, "device")
        else f"given ratio {cost:g}"
    )
    return f"recorded: {_short(device)}{f', {dtype}' if dtype else ''}; {_short(price)}"


def check_plots(path: Path | None = None) -> None:
    """ValueError, one line, where matplotlib is not installed, or `path` is no PNG's name."""
    if path is not None and path.suffix.lower() != ".png":
        raise ValueError(f"--plot is {path}, expected a name that ends in .png")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("charts need matplotlib: pip install 'simspec[plots]'") from None


def plot_curves(
    curves: Mapping[str, Sequence[Point]],
    path: Path | str,
    notes: Mapping[str, str] | None = None,
    measured: Mapping[str, Sequence[Point]] | None = None,
) -> None:
    """Write a PNG: fixed lengths as a curve with its band, adaptive policies as horizontal lines.

    Intervals of adaptive policies are bars beyond the longest K. A policy has one color in all
    panels; notes {recording: a further line}, see `source_note`; measured: speedups that an engine
    gave at fixed lengths, as points with bars.
    """
    from matplotlib.figure import Figure

    across = min(len(curves), ACROSS)
    down = -(-len(curves) // across)
    figure = Figure(figsize=(6.4 * across, 4.4 * down + 0.6), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    adaptive = dict.fromkeys(p.policy for points in curves.values() for p in points if p.K is None)
    colors = {name: f"C{i % 10}" for i, name in enumerate(adaptive)}
    legend: dict[str, Any] = {}
    for axes, (name, points) in zip(panels, curves.items()):
        legend |= _draw_panel(axes, points, colors)
        if measured is not None:
            legend["measured"] = _draw_measured(axes, measured[name])
        interval = points[0].speedup
        level = f"{interval.level:.0%} intervals over {interval.prompts} prompts"
        level = "no intervals" if isnan(interval.low) else level
        axes.set(
            xlabel="draft length K",
            ylabel=f"{'modelled ' if measured is None else ''}speedup over plain decoding",
            title=f"{label_text(Path(name).name)}, {level}",
        )
        axes.title.set_fontsize("medium")
        if notes and name in notes:
            place = {"xycoords": "axes fraction", "ha": "right", "fontsize": 6, "color": "0.35"}
            axes.annotate(label_text(notes[name]), (0.99, 0.02), **place)
    for axes in panels[len(curves) :]:
        axes.remove()
    figure.legend(
        legend.values(),
        map(label_text, legend),
        loc="outside lower center",
        ncols=min(len(legend), 4 * across),
        fontsize="small",
    )
    with replacing(Path(path)) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def _draw_panel(axes: Any, points: Sequence[Point], colors: Mapping[str, str]) -> dict[str, Any]:
    """Draw the points; {label: the line of the legend}."""
    fixed = {p.K: p.speedup for p in points if p.K is not None}
    lengths = sorted(fixed)
    speedups = [fixed[k] for k in lengths]
    axes.fill_between(lengths, [s.low for s in speedups], [s.high for s in speedups], color="0.85")
    values = [s.value for s in speedups]
    legend = {"fixed K": axes.plot(lengths, values, "o-", color="black", ms=3.5, lw=1)[0]}
    step = max(lengths[-1], 1) / 45
    for i, point in enumerate(p for p in points if p.K is None):
        style = "--" if point.policy in CLAIRVOYANT else "-"
        line = {"color": colors[point.policy], "lw": 1.2}
        legend[point.policy] = axes.axhline(point.speedup.value, ls=style, **line)
        axes.vlines(lengths[-1] + (i + 1) * step, [point.speedup.low], [point.speedup.high], **line)
    axes.axhline(1, color="grey", lw=0.8, ls=":")
    axes.xaxis.get_major_locator().set_params(integer=True)
    return legend


def _draw_measured(axes: Any, points: Sequence[Point]) -> Any:
    found = [p.speedup for p in points]
    bars = [s.value - s.low for s in found], [s.high - s.value for s in found]
    lengths, values = [p.K for p in points], [s.value for s in found]
    return axes.errorbar(lengths, values, bars, fmt="o", ms=4, color="C1", lw=1, capsize=2)


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

"""Pictures of speedups by draft length and by policy, predicted beside measured."""

from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import Any

from simspec.numerics.stats import Estimate
from simspec.output.files import replacing
from simspec.output.names import label_text

Curve = Mapping[int, Estimate]
"""{draft length: speedup over plain decoding}."""
ACROSS = 4
"""Most panels side by side."""


def check_plots(path: Path | None = None) -> None:
    """ValueError, one line, where matplotlib is not installed, or `path` is no PNG's name."""
    if path is not None and path.suffix.lower() != ".png":
        raise ValueError(f"--plot is {path}, expected a name that ends in .png")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("charts need matplotlib: pip install 'simspec[plots]'") from None


def plot_curves(
    predicted: Mapping[str, Curve], measured: Mapping[str, Curve], path: Path | str
) -> None:
    """Write a PNG with a panel for each name: predicted as a curve with its band, measured as
    points with bars."""
    from matplotlib.figure import Figure

    across = min(len(predicted), ACROSS)
    down = -(-len(predicted) // across)
    figure = Figure(figsize=(6.4 * across, 4.4 * down + 0.6), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    legend: dict[str, Any] = {}
    for axes, (name, curve) in zip(panels, predicted.items()):
        legend = _draw_panel(axes, curve, measured[name])
        interval = next(iter(curve.values()))
        level = f"{interval.level:.0%} intervals over {interval.prompts} prompts"
        level = "no intervals" if isnan(interval.low) else level
        axes.set(
            xlabel="draft length K",
            ylabel="speedup over plain decoding",
            title=f"{label_text(Path(name).name)}, {level}",
        )
        axes.title.set_fontsize("medium")
    for axes in panels[len(predicted) :]:
        axes.remove()
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": 2, "fontsize": "small"}
    figure.legend(legend.values(), legend, **place)
    with replacing(Path(path)) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def plot_policies(
    predicted: Mapping[str, Estimate], measured: Mapping[str, Estimate], path: Path
) -> None:
    """Write a PNG with a line for each policy: its predicted and its measured speedup, with their
    intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 0.4 * len(measured) + 1.2), layout="constrained")
    axes = figure.subplots()
    for label, speedups, color, above in (
        ("predicted", predicted, "black", -0.13),
        ("measured", measured, "C1", 0.13),
    ):
        at = [i + above for i, name in enumerate(measured) if name in speedups]
        found = [speedups[name] for name in measured if name in speedups]
        bars = zip(*((s.value - s.low, s.high - s.value) for s in found))
        look: dict[str, Any] = {"fmt": "o", "ms": 4, "lw": 1, "capsize": 2, "color": color}
        axes.errorbar([s.value for s in found], at, xerr=[*bars], label=label, **look)
    axes.set_yticks(range(len(measured)), [label_text(name) for name in measured])
    axes.invert_yaxis()
    axes.axvline(1, color="grey", lw=0.8, ls=":")
    axes.set_xlabel("speedup over plain decoding")
    axes.legend(fontsize="small")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def _draw_panel(axes: Any, predicted: Curve, measured: Curve) -> dict[str, Any]:
    """Draw both; {label: the line of the legend}."""
    curve = dict(sorted(predicted.items()))
    low, high, values = ([getattr(s, x) for s in curve.values()] for x in ("low", "high", "value"))
    axes.fill_between([*curve], low, high, color="0.85")
    line = axes.plot([*curve], values, "o-", color="black", ms=3.5, lw=1)[0]
    axes.axhline(1, color="grey", lw=0.8, ls=":")
    axes.xaxis.get_major_locator().set_params(integer=True)
    bars = zip(*((s.value - s.low, s.high - s.value) for s in measured.values()))
    values = [s.value for s in measured.values()]
    look: dict[str, Any] = {"fmt": "o", "ms": 4, "color": "C1", "lw": 1, "capsize": 2}
    points = axes.errorbar([*measured], values, [*bars], **look)
    return {"predicted": line, "measured": points}

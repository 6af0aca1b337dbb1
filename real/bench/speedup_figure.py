"""A figure of policies as points with intervals, one panel per recording."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from real.files import replacing
from simspec import CostModel, Trace
from simspec.numerics.stats import Interval, ratio
from simspec.output.names import label_text
from simspec.reports.prompt_seconds import replicated_seconds

Measured = tuple[str, float, float | None, float | None]
"""(policy, speedup, ends of its interval or None) of a real run."""


def speedup_intervals(
    traces: Mapping[str, Trace],
    policies: Sequence[str],
    costs: Mapping[str, CostModel],
    replicates: int = 4,
) -> dict[str, dict[str, Interval]]:
    """recording -> policy -> speedup with its 95% interval over prompts and prices."""
    intervals: dict[str, dict[str, Interval]] = {}
    for name, trace in traces.items():
        seconds, tokens = replicated_seconds(trace, policies, costs[name], replicates, 0)
        plain = tokens * costs[name].baseline
        intervals[name] = {policy: ratio(plain, spent) for policy, spent in seconds.items()}
    return intervals


def draw_speedups(
    intervals: Mapping[str, Mapping[str, Interval]], measured: Mapping[str, Measured], path: Path
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
    panel, recording: str, policies: Mapping[str, Interval], measured: Measured | None
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

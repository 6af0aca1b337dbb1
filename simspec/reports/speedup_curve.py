"""Speedup against K: fixed draft lengths as a curve, adaptive policies as lines across it (EESD Figure 3), with intervals over prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simspec.files import replacing
from simspec.policies import CLAIRVOYANT, fixed
from simspec.stats import FEWEST, Interval, ratio
from simspec.sweep import rows
from simspec.trace import Trace

ACROSS = 4
"""Panels beside each other, at most."""


@dataclass(frozen=True)
class Point:
    """A policy's modelled speedup on a recording; K is a fixed draft length, None for an adaptive policy.

    Of fewer than 8 prompts the interval is the value alone (low = high = value): too few to say more.
    """

    policy: str
    K: int | None
    speedup: Interval


def curve(
    trace: Trace,
    policies: Sequence,
    cost,
    replicates: int = 4,
    seed: int = 0,
    longest: int | None = None,
    level: float = 0.95,
    jobs: int = 1,
) -> list[Point]:
    """Points of fixed(0) .. fixed(longest) (default: as deep as trace and cost reach), then of `policies` that are no fixed length.

    speedup = sum over prompts of L T_plain / sum of modelled seconds, replicates averaged, resampled by prompt (`stats.ratio`). Policies as
    for `sweep`; ValueError as there, and for a length that is not recorded or priced.
    """
    most = min(trace.K, getattr(cost, "K", trace.K))
    longest = most if longest is None else longest
    if not 0 <= longest <= most:
        raise ValueError(
            f"longest is {longest}, expected 0 to {most}: the recording and its costs reach no further"
        )
    lengths = {fixed(k).name: k for k in range(longest + 1)}
    others = [
        p
        for p in policies
        if (p if isinstance(p, str) else getattr(p, "name", "")).partition(":")[0] != "fixed"
    ]
    parts: dict[str, dict[str, np.ndarray]] = {}
    for row in rows(
        trace, [*map(fixed, range(longest + 1)), *others], cost, replicates, seed, "prompt", jobs
    ):
        held = parts.setdefault(row["policy"], {}).setdefault(row["group"], np.zeros(2))
        held += row["speedup"] * row["seconds"], row["seconds"]
    found = []
    for name, prompts in parts.items():
        plain, spent = np.array(list(prompts.values())).T
        value = float(plain.sum() / spent.sum())
        few = Interval(value, value, value, level, len(plain))
        found.append(
            Point(
                name,
                lengths.get(name),
                few if len(plain) < FEWEST else ratio(plain, spent, level=level, seed=seed),
            )
        )
    return found


def told(trace: Trace, cost) -> str:
    """Where a panel's numbers come from, in one line: device and dtype of the recording, and the device that was priced, or a ratio."""
    device, dtype = trace.meta.device or "no device named", trace.meta.dtype
    price = (
        f"a draft step is {cost:g} of a target step"
        if not hasattr(cost, "device")
        else f"costs of {cost.device or 'no device named'}"
    )
    return f"recorded: {_short(device)}{f', {dtype}' if dtype else ''}; {_short(price)}"


def draw(
    curves: Mapping[str, Sequence[Point]], path, said: Mapping[str, str] | None = None
) -> None:
    """Writes a PNG, a panel for each recording: fixed lengths as a curve with its band, the others as horizontal lines.

    Their intervals stand as bars behind the longest K. A policy has one colour in all panels; `said` gives panels a further line (`told`).
    """
    from matplotlib.figure import Figure

    across = min(len(curves), ACROSS)
    down = -(-len(curves) // across)
    figure = Figure(figsize=(6.4 * across, 4.4 * down + 0.6), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    colours = {
        name: f"C{i % 10}"
        for i, name in enumerate(
            dict.fromkeys(p.policy for c in curves.values() for p in c if p.K is None)
        )
    }
    shown = {}
    for axes, (name, points) in zip(panels, curves.items()):
        line = sorted((p for p in points if p.K is not None), key=lambda p: p.K)
        at = [p.K for p in line]
        axes.fill_between(
            at, [p.speedup.low for p in line], [p.speedup.high for p in line], color="0.85"
        )
        shown["fixed K"] = axes.plot(
            at, [p.speedup.value for p in line], "o-", color="black", ms=3.5, lw=1
        )[0]
        others, step = [p for p in points if p.K is None], max(at[-1], 1) / 45
        for i, point in enumerate(others):
            style, ends = (
                "--" if point.policy in CLAIRVOYANT else "-",
                [[x] for x in (point.speedup.low, point.speedup.high)],
            )
            line_of = {"color": colours[point.policy], "lw": 1.2}
            shown[point.policy] = axes.axhline(point.speedup.value, ls=style, **line_of)
            axes.vlines(at[-1] + (i + 1) * step, *ends, **line_of)
        axes.axhline(1, color="grey", lw=0.8, ls=":")
        axes.xaxis.get_major_locator().set_params(integer=True)
        level = f"{line[0].speedup.level:.0%} intervals over {line[0].speedup.prompts} prompts"
        axes.set(
            xlabel="draft length K",
            ylabel="modelled speedup over plain decoding",
            title=f"{Path(name).name}, {level}",
        )
        axes.title.set_fontsize("medium")
        if said and name in said:
            axes.annotate(
                said[name],
                (0.99, 0.02),
                xycoords="axes fraction",
                ha="right",
                fontsize=6,
                color="0.35",
            )
    for axes in panels[len(curves) :]:
        axes.remove()
    figure.legend(
        shown.values(),
        shown.keys(),
        loc="outside lower center",
        ncols=min(len(shown), 4 * across),
        fontsize="small",
    )
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

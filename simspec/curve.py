"""Speedup against K: fixed draft lengths as a curve, adaptive policies as lines across it (EESD Figure 3), with intervals over prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simspec.output import replacing
from simspec.policies import CLAIRVOYANT, fixed
from simspec.stats import FEWEST, Interval, ratio
from simspec.sweep import rows
from simspec.trace import Trace


@dataclass(frozen=True)
class Point:
    """A policy's modelled speedup on a recording; K is a fixed draft length, None for an adaptive policy.

    Of fewer than 8 prompts the interval is the value alone (low = high = value): too few to say more.
    """

    policy: str
    K: int | None
    speedup: Interval


def curve(
    trace: Trace, policies: Sequence, cost, replicates: int = 4, seed: int = 0, longest: int | None = None, level: float = 0.95,
    jobs: int = 1,
) -> list[Point]:
    """Points of fixed(0) .. fixed(longest) (default: as deep as trace and cost reach), then of `policies` that are no fixed length.

    speedup = sum over prompts of L T_plain / sum of modelled seconds, replicates averaged, resampled by prompt (`stats.ratio`). Policies as
    for `sweep`; ValueError as there, and for a length that is not recorded or priced.
    """
    most = min(trace.K, getattr(cost, "K", trace.K))
    longest = most if longest is None else longest
    if not 0 <= longest <= most:
        raise ValueError(f"longest is {longest}, expected 0 to {most}: the recording and its costs reach no further")
    lengths = {fixed(k).name: k for k in range(longest + 1)}
    others = [p for p in policies if (p if isinstance(p, str) else getattr(p, "name", "")).partition(":")[0] != "fixed"]
    parts: dict[str, dict[str, np.ndarray]] = {}
    for row in rows(trace, [*map(fixed, range(longest + 1)), *others], cost, replicates, seed, "prompt", jobs):
        held = parts.setdefault(row["policy"], {}).setdefault(row["group"], np.zeros(2))
        held += row["speedup"] * row["seconds"], row["seconds"]
    found = []
    for name, prompts in parts.items():
        plain, spent = np.array(list(prompts.values())).T
        value = float(plain.sum() / spent.sum())
        few = Interval(value, value, value, level, len(plain))
        found.append(Point(name, lengths.get(name), few if len(plain) < FEWEST else ratio(plain, spent, level=level, seed=seed)))
    return found


def draw(curves: Mapping[str, Sequence[Point]], path) -> None:
    """Writes a PNG, a panel for each recording: fixed lengths as a curve with its band, the others as horizontal lines with theirs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * len(curves), 4.4), layout="constrained")
    for axes, (name, points) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items()):
        line = sorted((p for p in points if p.K is not None), key=lambda p: p.K)
        at = [p.K for p in line]
        axes.fill_between(at, [p.speedup.low for p in line], [p.speedup.high for p in line], color="0.85")
        axes.plot(at, [p.speedup.value for p in line], "o-", color="black", ms=3.5, lw=1, label="fixed K")
        for i, point in enumerate(p for p in points if p.K is None):
            style = "--" if point.policy in CLAIRVOYANT else "-"
            axes.axhspan(point.speedup.low, point.speedup.high, color=f"C{i % 10}", alpha=0.1, lw=0)
            axes.axhline(point.speedup.value, color=f"C{i % 10}", ls=style, lw=1.2, label=point.policy)
        axes.axhline(1, color="grey", lw=0.8, ls=":")
        level = f"{line[0].speedup.level:.0%} intervals over {line[0].speedup.prompts} prompts"
        axes.set(xlabel="draft length K", ylabel="modelled speedup over plain decoding", title=f"{Path(name).name}\n{level}")
        axes.legend(fontsize="x-small")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)

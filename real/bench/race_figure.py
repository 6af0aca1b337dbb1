"""The figure of a race: the speedup of every contestant, with its interval."""

from collections.abc import Sequence
from pathlib import Path

from real.bench.contestant import PLAIN
from real.bench.race_rows import RaceRow
from real.files import replacing
from real.prompts import ALL, LOW_REPEAT
from simspec.output.names import label_text


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

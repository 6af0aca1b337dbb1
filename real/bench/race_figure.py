"""The figure of a race: throughput of every contestant."""

from collections.abc import Sequence
from pathlib import Path

from real.bench.contestant import PLAIN
from real.bench.race_rows import RaceRow
from real.files import replacing
from real.prompts import ALL, LOW_REPEAT
from simspec.names import label_text


def draw_race(rows: Sequence[RaceRow], device: str, path: Path) -> None:
    """Writes a PNG: tokens a second, on all prompts and on those that repeat little."""
    from matplotlib.figure import Figure

    ranked = sorted((r for r in rows if r.group == ALL), key=lambda r: r.rate or 0.0)
    names = [r.contestant for r in ranked]
    figure = Figure(figsize=(11, 0.3 * len(names) + 2.5), layout="constrained")
    for axes, group in zip(figure.subplots(1, 2, sharey=True), (ALL, LOW_REPEAT)):
        by_name = {r.contestant: r for r in rows if r.group == group}
        rates = [by_name[name].rate or 0.0 for name in names]
        deviation = [(by_name[name].spread or 0.0) * rate for name, rate in zip(names, rates)]
        colors = ["C0" if "=" in name else "C1" if name == PLAIN else "0.6" for name in names]
        axes.barh(range(len(names)), rates, xerr=deviation, color=colors, error_kw={"lw": 0.8})
        axes.axvline(by_name[PLAIN].rate or 0.0, color="C1", lw=0.8)
        axes.set_yticks(range(len(names)), [*map(label_text, names)], fontsize="small")
        axes.set(
            xlabel="tokens a second, end to end",
            title=label_text(f"{group}: {by_name[PLAIN].prompts} prompts"),
        )
    figure.suptitle(
        f"{device} (blue: decode loop with drafter=policy, orange: without drafts, "
        "grey: transformers)",
        fontsize="small",
    )
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)

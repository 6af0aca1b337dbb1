"""A sweep's figures averaged over replicates, as rows and as a picture."""

from pathlib import Path
from typing import Any

from simspec.output.files import replacing
from simspec.output.names import label_text

NAMES = ("trace", "group", "cost", "policy")
FIGURES = ("committed_per_round", "v_d", "r_d", "hm", "speedup", "cut_share")


def sweep_means(table: Any) -> Any:
    """The means of FIGURES by NAMES, a pandas DataFrame, in the order of the sweep's rows."""
    means = table.groupby(list(NAMES), sort=False)[list(FIGURES)].mean().reset_index()
    return means.assign(trace=[Path(name).name for name in means["trace"]])


def plot_sweep(table: Any, path: Path) -> None:
    """Write a PNG of the speedups: a line per recording, group and cost, policies across."""
    from matplotlib.figure import Figure

    means = sweep_means(table)
    means["label"] = [
        label_text(f"{row.trace} {row.group} {row.cost}") for row in means.itertuples()
    ]
    figure = Figure(figsize=(9, 4.5 + 0.2 * means["label"].nunique()), layout="constrained")
    axes = figure.subplots()
    for label, part in means.groupby("label", sort=False):
        axes.plot([*map(label_text, part["policy"])], part["speedup"], marker="o", label=label)
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_ylabel("modelled speedup over plain decoding")
    axes.tick_params(axis="x", rotation=40)
    for label in axes.get_xticklabels():
        label.set(ha="right", rotation_mode="anchor")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)

"""A picture of the errors of stand-ins for accepted length, one panel per recording."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simspec.output.files import replacing
from simspec.output.names import label_text
from simspec.reports.transport import TransportRow

ACROSS = 4
"""Most panels side by side."""


def plot_transport(rows: Sequence[TransportRow], path: Path | str) -> None:
    """Write a PNG: relative error against K, a line with its band for each stand-in."""
    from matplotlib.figure import Figure

    panels: dict[str, list[TransportRow]] = {}
    for row in rows:
        panels.setdefault(row.recording, []).append(row)
    stand_ins = list(dict.fromkeys(name for row in rows for name in row.errors))
    across = min(len(panels), ACROSS)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(4.8 * across, 3.8 * down + 0.5), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    legend: dict[str, Any] = {}
    for panel, (recording, of_recording) in zip(axes, panels.items()):
        for i, name in enumerate(stand_ins):
            held = [row for row in of_recording if name in row.errors]
            lengths, errors = [row.K for row in held], [row.errors[name] for row in held]
            low, high = ([100 * getattr(e, limit) for e in errors] for limit in ("low", "high"))
            panel.fill_between(lengths, low, high, color=f"C{i}", alpha=0.2, lw=0)
            values = [100 * error.value for error in errors]
            legend[name] = panel.plot(lengths, values, "o-", color=f"C{i}", ms=3, lw=1)[0]
        panel.axhline(0, color="grey", lw=0.8, ls=":")
        panel.set(xlabel="draft length K", ylabel="error of accepted length, %")
        panel.set_title(label_text(Path(recording).name), fontsize="medium")
        panel.xaxis.get_major_locator().set_params(integer=True)
    for panel in axes[len(panels) :]:
        panel.remove()
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=len(legend))
    with replacing(Path(path)) as temporary:
        figure.savefig(temporary, format="png", dpi=130)

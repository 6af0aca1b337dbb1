"""The figure of pass latencies."""

from pathlib import Path
from typing import Any

from real.files import replacing
from real.measure.latency_grid import LatencyGrid


def draw_latency(grid: LatencyGrid, path: Path) -> None:
    """Writes a PNG: per context milliseconds against width, one line per batch, floors dashed.

    Bands are the 10th to 90th percentile.
    """
    from matplotlib.figure import Figure

    contexts, batches = grid.axis("context"), grid.axis("batch")
    figure = Figure(figsize=(1 + 4.2 * len(contexts), 4.6), layout="constrained")
    panels = figure.subplots(1, len(contexts), sharey=True, squeeze=False)[0]
    for panel, context in zip(panels, contexts):
        for i, batch in enumerate(batches):
            cells: list[Any] = [c for c in grid.by_width(batch, context) if c.fits]
            if not cells:
                continue
            across, colour = [c.width for c in cells], f"C{i % 10}"
            panel.plot(
                across,
                [1e3 * c.median_s for c in cells],
                "o-",
                ms=3,
                lw=1,
                color=colour,
                label=f"batch {batch}",
            )
            panel.fill_between(
                across,
                [1e3 * c.p10_s for c in cells],
                [1e3 * c.p90_s for c in cells],
                color=colour,
                alpha=0.2,
                lw=0,
            )
            panel.plot(across, [1e3 * c.floor_s for c in cells], "--", lw=0.8, color=colour)
        panel.set(xlabel="rows a sequence", title=f"context {context}", yscale="log")
    panels[0].set_ylabel("milliseconds a pass (dashed: floor)")
    if panels[0].get_legend_handles_labels()[0]:
        panels[0].legend(fontsize="small")
    figure.suptitle(
        f"{grid.shape.name}, {grid.dtype}, {grid.device}, {execution(grid)}", fontsize="medium"
    )
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def execution(grid: LatencyGrid) -> str:
    """How passes were executed: "eager", "captured" or "captured, fused"."""
    return "eager" if not grid.graphed else "captured" + (", fused" if grid.fused else "")

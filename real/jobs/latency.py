"""Timing passes of any width, batch and context on a model of any size."""

from dataclasses import dataclass
from pathlib import Path

from real.bench.latency_figure import draw_latency
from real.measure.grid_costs import grid_cost_table
from real.measure.grid_settings import GridAxes, GridSettings
from real.measure.latency_grid import LatencyGrid
from real.measure.time_grid import measure_grid
from real.model.random_models import read_target
from real.progress import Progress, quiet, relabel
from real.provenance import check_device
from simspec.numerics.rng import check_seed
from simspec.output.files import check_output


@dataclass(frozen=True)
class LatencyFiles:
    """Where results go: all cells (.json, continued by a second call), a cost table, a figure."""

    out: Path
    table: Path | None = None
    plot: Path | None = None


def measure_latency(
    target: str,
    axes: GridAxes,
    settings: GridSettings,
    files: LatencyFiles,
    progress: Progress = quiet,
) -> LatencyGrid:
    """Times passes of the model `target` with random weights, beside the device's floor."""
    check_device(settings.device)
    check_seed(settings.seed)
    _check_files(target, axes, settings, files)
    shape = read_target(target)
    grid = measure_grid(
        shape,
        axes,
        settings,
        LatencyGrid.from_json(files.out) if files.out.exists() else None,
        lambda measured: measured.to_json(files.out),
        relabel(progress, f"timing {shape.name}"),
    )
    if files.table is not None:
        grid_cost_table(grid, settings.drafters[0]).to_json(files.table)
    if files.plot is not None:
        draw_latency(grid, files.plot)
    return grid


def _check_files(target: str, axes: GridAxes, settings: GridSettings, files: LatencyFiles) -> None:
    paths = [path for path in (files.out, files.table, files.plot) if path is not None]
    inputs = [text.partition(":")[2] for text in settings.drafters]
    for i, path in enumerate(paths):
        check_output(path, target, *inputs, *paths[:i])
    if files.table is None:
        return
    if not settings.drafters:
        raise ValueError(
            "--table needs --drafter, whose step prices the drafts: "
            "add one such as --drafter early_exit:4"
        )
    if 1 not in axes.widths or len(axes.widths) < 2:
        raise ValueError(
            f"--table needs a pass of one row and a wider one, --width is {list(axes.widths)}: "
            "add --width 1 and another"
        )

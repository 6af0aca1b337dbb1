"""Measures a latency grid: passes of random models, saved after each batch and context."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from real.measure.device_limits import device_speeds
from real.measure.grid_settings import GridAxes, GridSettings
from real.measure.grid_timer import GridTimer
from real.measure.latency_grid import LatencyGrid
from real.measure.pass_latency import TARGET
from real.measure.timer import Timer
from real.model.random_models import check_room
from real.progress import Progress, quiet
from real.provenance import device_name
from simspec.cost.shapes import ModelShape


def measure_grid(
    shape: ModelShape,
    axes: GridAxes,
    settings: GridSettings,
    measured: LatencyGrid | None = None,
    save: Callable[[LatencyGrid], None] = lambda grid: None,
    progress: Progress = quiet,
    timer: Timer | None = None,
) -> LatencyGrid:
    """Latency of a pass of w rows a sequence through the decoder and its head, for every size.

    Weights, tokens and cached rows are random. All passes of a batch and context run `repeats`
    times, in a new random order each time, after one turn that does not count (`elapsed`). A
    captured pass covers all cached rows that the widest one needs, under a mask. A drafter's pass
    is one row through its own layers and head.

    Cells of `measured` are not measured again, and its device speeds are reused. `save` receives
    the grid after each batch and context. A pass beyond the device's memory has no times.
    ValueError for settings other than those of `measured`, and where the weights do not fit.
    """
    size = float(torch.empty((), dtype=settings.dtype).element_size())
    shape = replace(shape, weight_bytes=size, cache_bytes=size)
    extra = settings.drafter_shapes(shape)
    stored: dict[str, Any] = {
        "device": device_name(settings.device),
        "dtype": str(settings.dtype).removeprefix("torch."),
        "shape": shape,
        "graphed": settings.graphs,
        "fused": settings.compiled,
        "repeats": settings.repeats,
    }
    if measured is not None:
        _check_same(measured.settings, stored)
    parts = [(TARGET, w) for w in axes.widths] + [(name, 1) for name in settings.drafters]
    done_keys = {c.key for c in measured.cells} if measured else set()
    missing = [
        [key for part, w in parts if (key := (part, b, c, w)) not in done_keys]
        for c in axes.contexts
        for b in axes.batches
    ]
    total = sum(map(len, missing))
    if measured is not None and not total:
        return measured
    check_room([shape, *extra], settings.dtype, axes.contexts[0] + axes.widths[-1], settings.device)
    grid = measured or LatencyGrid(
        **stored, speeds=device_speeds(settings.dtype, settings.device, timer=timer)
    )
    grid_timer = GridTimer(shape, settings, axes.widths[-1], timer)
    done = 0
    for keys in filter(None, missing):
        grid = grid.extended(grid_timer.latencies(keys, grid.speeds))
        done += len(keys)
        save(grid)
        progress("timing", done, total)
    return grid


def _check_same(measured: dict, stored: dict) -> None:
    for name, value in stored.items():
        if measured[name] != value:
            raise ValueError(
                f"the cells there have {name} {measured[name]}, this run has {value}: "
                "write to another file"
            )

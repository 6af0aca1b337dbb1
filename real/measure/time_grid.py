"""Measures a latency grid: passes of random models, saved after each batch and context."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from real.measure.device_limits import Timer, device_speeds
from real.measure.grid_timer import GridTimer
from real.measure.latency_grid import TARGET, GridAxes, GridSettings, LatencyGrid, PassLatency
from real.model.random_models import check_room
from real.progress import Progress, quiet
from real.provenance import device_name
from simspec import CostModel
from simspec.cost.shapes import ModelShape
from simspec.cost.table import CostTable


def grid_cost(grid: LatencyGrid, batch: int, context: int, step: str | float) -> CostModel:
    """A CostModel of a whole batch, from measured passes of the target and a draft step.

    | field | seconds |
    | --- | --- |
    | verify[j] | median of width j + 1, linear between measured widths |
    | draft[j] | j steps: the median of a measured drafter, or seconds given |
    | baseline | median of width 1 |
    | overhead, catch_up | 0: what a loop does between passes is not measured |

    Layers that a drafter shares with the target count in full.
    ValueError where a cell is missing, for fewer than 2 widths, or without width 1.
    """
    cells = grid.by_width(batch, context)
    seconds = _medians(cells)
    if len(cells) < 2 or cells[0].width != 1 or len(seconds) < len(cells):
        raise ValueError(
            f"batch {batch}, context {context}: "
            f"widths measured are {[c.width for c in cells if c.fits]}, "
            "expected all asked for, 1 and a wider one"
        )
    if isinstance(step, str):
        steps = _medians(grid.by_width(batch, context, step)[:1])
        if not steps:
            raise ValueError(
                f"drafter {step!r} was not measured at batch {batch} and context {context}: "
                "name one that was"
            )
        name, step_seconds = step, steps[0]
    else:
        name, step_seconds = f"step {step:g} s", step
    K = cells[-1].width - 1
    return CostModel(
        draft=step_seconds * np.arange(K + 1),
        verify=np.interp(np.arange(1, K + 2), [c.width for c in cells], seconds),
        catch_up=np.zeros(1),
        overhead=0.0,
        baseline=seconds[0],
        name=f"{grid.shape.name} {name}-b{batch}-c{context}",
        device=grid.device,
    )


def grid_cost_table(grid: LatencyGrid, step: str | float) -> CostTable:
    """`grid_cost` at every batch and context; None where a pass did not fit.

    ValueError where no batch and context fits at all its widths.
    """
    costs: dict[tuple[int, int], CostModel | None] = {}
    for batch in grid.axis("batch"):
        for context in grid.axis("context"):
            cells = grid.by_width(batch, context)
            if not cells:
                continue
            if isinstance(step, str):
                cells += grid.by_width(batch, context, step)
            fits = all(c.fits for c in cells)
            costs[batch, context] = grid_cost(grid, batch, context, step) if fits else None
    sizes = [size for size, cost in costs.items() if cost is not None]
    if not sizes:
        raise ValueError(
            f"no cell of {grid.shape.name} fits {grid.device} at all its widths: "
            "measure smaller sizes"
        )
    batches, contexts = (tuple(sorted({size[axis] for size in sizes})) for axis in (0, 1))
    table = tuple(tuple(costs.get((b, c)) for c in contexts) for b in batches)
    return CostTable(batches, contexts, table, grid.shape.name)


def _medians(cells: Sequence[PassLatency]) -> list[float]:
    return [c.median_s for c in cells if c.median_s is not None]


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

"""Cost models of whole batches, from a latency grid."""

from collections.abc import Sequence

import numpy as np

from real.measure.latency_grid import LatencyGrid
from real.measure.pass_latency import PassLatency
from simspec import CostModel
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

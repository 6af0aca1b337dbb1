"""Lower bounds on costs from model sizes and device figures.

A pass takes its memory traffic or its arithmetic, whichever is longer.
It is a lower bound, to choose with before there is a machine to measure on. Real passes reach a
part of either figure, and what data sheets omit (launches, sampling, the host) counts as 0 unless
the Device has it. Prefer measured costs.
"""

import math
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from simspec.cost.model import CostModel
from simspec.cost.shapes import Device, ModelShape, cache_bytes, matrix_weights, memory
from simspec.cost.table import CostTable


def pass_bytes(
    shape: ModelShape,
    rows: int,
    batch: int,
    context: int,
    layers: int | None = None,
    head: bool = True,
) -> float:
    """Bytes that a pass moves: its matrices once, and keys and values of the context and of the new
    rows.

    Each of `batch` sequences passes `rows` rows after `context` cached ones. Activations and single
    embedding rows are left out.
    """
    weights = matrix_weights(shape, layers, head) * shape.weight_bytes
    return weights + batch * (context + rows) * cache_bytes(shape, layers)


def pass_flops(
    shape: ModelShape,
    rows: int,
    batch: int,
    context: int,
    tile: int = 1,
    layers: int | None = None,
    head: bool = True,
) -> float:
    """Operations of a pass: 2 W ceil(B n / tile) tile in the matrices, 4 h e a layer and attended
    row.

    W = matrix_weights, B n = batch x rows. Row i of n attends to context + i rows (itself
    included), so a sequence reads n context + n (n + 1) / 2.
    """
    padded = -(-batch * rows // tile) * tile
    read = batch * (rows * context + rows * (rows + 1) / 2)
    deep = shape.layers if layers is None else layers
    return (
        2 * matrix_weights(shape, layers, head) * padded
        + 4 * shape.heads * shape.head_dim * deep * read
    )


def pass_seconds(
    shape: ModelShape,
    device: Device,
    rows: int,
    batch: int = 1,
    context: int = 0,
    layers: int | None = None,
    head: bool = True,
) -> float:
    """Seconds of a pass: overhead + launch x layers + max(bytes / bandwidth, operations / rate).

    Each of `batch` sequences passes `rows` rows after `context` cached ones, through `layers`
    layers with or without the head. Grows with rows in steps of the device's tile. ValueError for
    rows or batch < 1 or context < 0.
    """
    if rows < 1 or batch < 1 or context < 0:
        raise ValueError(
            f"rows is {rows}, batch {batch} and context {context}, expected at least 1, 1 and 0"
        )
    moved = pass_bytes(shape, rows, batch, context, layers, head) / device.bandwidth
    computed = pass_flops(shape, rows, batch, context, device.tile, layers, head) / device.rate
    return (
        device.overhead
        + device.launch * (shape.layers if layers is None else layers)
        + max(moved, computed)
    )


MAX_BACKLOG = 4
"""catch_up is priced up to this many rows."""
Drafter: TypeAlias = ModelShape | float
"""Another model, or the share of the target's layers in front of an early exit."""


def roofline_cost(
    target: ModelShape,
    drafter: Drafter,
    device: Device,
    K: int,
    batch: int = 1,
    context: int = 1024,
    nodes: int = 0,
) -> CostModel:
    """A CostModel: verify[j] is the target's pass over j + 1 rows, draft[j] the drafter's j passes
    over one row.

    An early exit drafts with the shared layers, one new layer and the target's head. Its
    rounds of j >= 1 verify j rows in the remaining layers, as the decode loop does (EESD section
    3.1). A backlog enters with the first draft step, for an early exit through its own layer only.
    nodes > 0 prices trees too: verify up to `nodes` tokens, and node, the second row of a draft
    pass. ValueError for invalid sizes, and where weights and caches exceed the device's memory.
    """
    needed = roofline_memory(target, drafter, K, batch, context)
    label, shared = _label(target, drafter), shared_layers(target, drafter)
    if needed > device.memory:
        raise ValueError(
            f"{label} needs {needed / 1e9:.1f} GB at batch {batch} and context {context}, "
            f"{device.name} has {device.memory / 1e9:.0f}: "
            "take fewer bytes a weight, less of either, or another device"
        )

    def verify(drafted: int) -> float:
        if not shared or not drafted:
            return pass_seconds(target, device, drafted + 1, batch, context)
        # Only the last draft token has not passed the shared layers. Both parts are one pass with
        # one overhead.
        last = pass_seconds(target, device, 1, batch, context + drafted, shared, False)
        remaining = target.layers - shared
        rest = pass_seconds(target, device, drafted + 1, batch, context, remaining)
        return last - device.overhead + rest

    model, layers = _draft_model(target, drafter)
    steps = [pass_seconds(model, device, 1, batch, context + i, layers) for i in range(K)]
    second_row = pass_seconds(model, device, 2, batch, context, layers) - steps[0]
    entered = (1, False) if shared else (layers, True)
    first = pass_seconds(model, device, 1, batch, context, *entered)
    catch_up = [
        pass_seconds(model, device, 1 + backlog, batch, context - backlog, *entered) - first
        for backlog in range(1, MAX_BACKLOG + 1)
    ]
    return CostModel(
        draft=np.array([math.fsum(steps[:j]) for j in range(K + 1)]),
        verify=np.array([verify(j) for j in range(max(K, nodes) + 1)]),
        catch_up=np.array([0.0, *(max(seconds, 0.0) for seconds in catch_up)]),
        overhead=0.0,
        baseline=pass_seconds(target, device, 1, batch, context),
        name=f"{label}-b{batch}-c{context}",
        device=f"roofline of {device.name}",
        node=max(second_row, 0.0) if nodes else 0.0,
    )


def roofline_table(
    target: ModelShape,
    drafter: Drafter,
    device: Device,
    K: int,
    batches: Iterable[int],
    contexts: Iterable[int],
    nodes: int = 0,
) -> CostTable:
    """`roofline_cost` over both axes; cells that exceed the device's memory are None.

    ValueError for a size that never fits.
    """
    batches, contexts = sorted(set(batches)), sorted(set(contexts))
    if not batches or not contexts:
        raise ValueError(
            f"batch sizes are {batches} and contexts {contexts}, expected at least one of each"
        )
    # The smallest cell raises its error if nothing fits.
    roofline_cost(target, drafter, device, K, batches[0], contexts[0], nodes)

    def cell(batch: int, context: int) -> CostModel | None:
        if roofline_memory(target, drafter, K, batch, context) > device.memory:
            return None
        return roofline_cost(target, drafter, device, K, batch, context, nodes)

    cells = tuple(tuple(cell(batch, context) for context in contexts) for batch in batches)
    name = f"{_label(target, drafter)} on {device.name}"
    return CostTable(tuple(batches), tuple(contexts), cells, name)


def roofline_memory(
    target: ModelShape, drafter: Drafter, K: int, batch: int, context: int
) -> float:
    """Bytes of target and drafter at the end of a round of K: all weights, and caches of context
    + K + 1 rows.
    """
    valid = isinstance(K, int) and not isinstance(K, bool) and 1 <= K <= 255
    if not valid or batch < 1 or context < MAX_BACKLOG:
        raise ValueError(
            f"K is {K}, batch {batch} and context {context}, "
            f"expected 1 to 255, at least 1 and at least {MAX_BACKLOG}"
        )
    rows = context + K + 1
    if sparse := [m.name for m in (target, drafter) if isinstance(m, ModelShape) and m.experts]:
        raise ValueError(
            f"{sparse[0]} routes rows to experts, expected a dense model: --engine prices its "
            "measured kernels"
        )
    if isinstance(drafter, ModelShape):
        shared_layers(target, drafter)
        return memory(target, batch, rows) + memory(drafter, batch, rows)
    shared_layers(target, drafter)
    # the exit's layer with its two norms, and the exit's norm
    exit_weights = matrix_weights(target, 1, False) + 3 * target.width
    return (
        memory(target, batch, rows)
        + exit_weights * target.weight_bytes
        + batch * rows * cache_bytes(target, 1)
    )


def shared_layers(target: ModelShape, drafter: Drafter) -> int:
    """Layers of the target that the drafter runs: 0 for a separate model; ValueError for an
    invalid drafter.
    """
    if isinstance(drafter, ModelShape):
        if drafter.vocab != target.vocab:
            raise ValueError(
                f"drafter {drafter.name!r} has {drafter.vocab} tokens, {target.name!r} "
                f"{target.vocab}: take one with the same tokenizer"
            )
        return 0
    if isinstance(drafter, bool) or not isinstance(drafter, (int, float)) or not 0 < drafter < 1:
        raise ValueError(
            f"drafter is {drafter!r}, expected a model, or an early exit's share of the layers, "
            "between 0 and 1"
        )
    if target.layers < 2:
        raise ValueError(
            f"model {target.name!r} has {target.layers} layer, expected at least 2 for an early "
            "exit"
        )
    return min(max(round(drafter * target.layers), 1), target.layers - 1)


def _draft_model(target: ModelShape, drafter: Drafter) -> tuple[ModelShape, int]:
    if isinstance(drafter, ModelShape):
        return drafter, drafter.layers
    return target, shared_layers(target, drafter) + 1


def _label(target: ModelShape, drafter: Drafter) -> str:
    if isinstance(drafter, ModelShape):
        return f"{target.name} {drafter.name}"
    return f"{target.name} exit {shared_layers(target, drafter)}"

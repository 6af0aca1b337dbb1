"""Bytes, operations and least time of one pass of a decoder."""

from simspec.device import Device
from simspec.model_shape import ModelShape, cache_bytes, matrix_weights


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

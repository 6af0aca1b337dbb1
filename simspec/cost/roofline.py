"""A lower bound on the seconds of a pass, from a model's sizes and a GPU's data sheet.

It answers "what if" in notebooks: real passes reach a part of either limit, launches, sampling and
the host take time too. Costs to decide with come from the engine that is used (docs/gpu.md).
"""

from dataclasses import dataclass
from math import fsum

import numpy as np

from simspec.cost.model import CostModel
from simspec.cost.table import CostTable


@dataclass(frozen=True)
class Device:
    """Bytes a second of the memory, dense operations a second (a multiply-add counts 2), and rows
    of a tile of matrix products."""

    name: str
    bandwidth: float
    rate: float
    tile: int = 1


# NVIDIA's data sheets: dense bfloat16, half of the figure 'with sparsity'. Tile: the smaller side
# of most tiles of cuBLAS (cublasLtMatmulTile_t).
DEVICES = {
    "h100": Device("H100 SXM", 3.35e12, 989.5e12, 64),
    "h200": Device("H200 SXM", 4.8e12, 989.5e12, 64),
}


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a Llama: grouped-query attention without biases, SwiGLU of `hidden`, `tied` head."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    tied: bool = False
    weight_bytes: float = 2.0
    cache_bytes: float = 2.0


SHAPES = {
    "llama-2-7b": ModelShape("llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000),
    "llama-3-8b": ModelShape("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256),
    "llama-3.2-1b": ModelShape("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, tied=True),
}
"""From config.json, as published with the weights."""


def pass_seconds(
    shape: ModelShape, device: Device, rows: int, batch: int = 1, context: int = 0,
    layers: int | None = None, head: bool = True,
) -> float:  # fmt: skip
    """Seconds of a pass of `batch` x `rows` rows after `context` cached ones: max(bytes /
    bandwidth, operations / rate).

    Bytes: all matrices once, and keys and values of the context and the new rows. Operations: 2 W
    a row, rows padded to tiles, and 4 h e a layer and attended row. Weights W: 2 d e (h + g) + 3 d
    f a layer, and d V for the head; d = width, h, g = query and key heads, e = head_dim, f =
    hidden, V = vocab.
    """
    s, deep = shape, shape.layers if layers is None else layers
    layer = 2 * s.width * s.head_dim * (s.heads + s.kv_heads) + 3 * s.width * s.hidden
    weights = layer * deep + s.width * s.vocab * head
    cached = 2 * s.kv_heads * s.head_dim * s.cache_bytes * deep
    moved = weights * s.weight_bytes + batch * (context + rows) * cached
    padded = -(-batch * rows // device.tile) * device.tile
    read = batch * (rows * context + rows * (rows + 1) / 2)
    operations = 2 * weights * padded + 4 * s.heads * s.head_dim * deep * read
    return max(moved / device.bandwidth, operations / device.rate)


def roofline_cost(
    target: ModelShape, drafter: ModelShape | float, device: Device, K: int, batch: int = 1,
    context: int = 1024, nodes: int = 0,
) -> CostModel:  # fmt: skip
    """Costs of a round; the drafter is a model, or an early exit after this share of the layers.

    An early exit drafts with the shared layers, one new layer and the target's head, and
    verification skips the layers that it ran (EESD section 3.1). nodes > 0 prices trees too.
    """
    shared = 0 if isinstance(drafter, ModelShape) else max(round(drafter * target.layers), 1)
    model = drafter if isinstance(drafter, ModelShape) else target
    layers = shared + 1 if shared else model.layers

    def verify(drafted: int) -> float:
        if not shared or not drafted:
            return pass_seconds(target, device, drafted + 1, batch, context)
        last = pass_seconds(target, device, 1, batch, context + drafted, shared, False)
        return last + pass_seconds(
            target, device, drafted + 1, batch, context, target.layers - shared
        )

    steps = [pass_seconds(model, device, 1, batch, context + i, layers) for i in range(K)]
    second = pass_seconds(model, device, 2, batch, context, layers) - steps[0]
    entered = (1, False) if shared else (layers, True)
    backlog = [pass_seconds(model, device, 1 + b, batch, context - b, *entered) for b in range(5)]
    label = f"{target.name} {f'exit {shared}' if shared else model.name}"
    return CostModel(
        draft=np.array([fsum(steps[:j]) for j in range(K + 1)]),
        verify=np.array([verify(j) for j in range(max(K, nodes) + 1)]),
        catch_up=np.maximum(np.array(backlog) - backlog[0], 0.0),
        overhead=0.0,
        baseline=pass_seconds(target, device, 1, batch, context),
        name=f"{label}-b{batch}-c{context}",
        device=f"roofline of {device.name}",
        node=max(second, 0.0) if nodes else 0.0,
    )


def roofline_table(
    target: ModelShape, drafter: ModelShape | float, device: Device, K: int,
    batches: tuple[int, ...], contexts: tuple[int, ...],
) -> CostTable:  # fmt: skip
    """`roofline_cost` at every batch size and context; memory is not checked."""
    rows = [[roofline_cost(target, drafter, device, K, b, c) for c in contexts] for b in batches]
    return CostTable(batches, contexts, tuple(map(tuple, rows)), f"{target.name} on {device.name}")

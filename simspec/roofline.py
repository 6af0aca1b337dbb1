"""Costs from a model's shape and a card's figures: each pass takes its bytes or its arithmetic, whichever is longer.

A bound from below, for choosing before there is a machine to measure on: real passes reach a part of either figure, and
what data sheets do not say (launches, sampling, the host) counts as 0 unless a Card is given it. Measured costs replace it.
"""

import math
from dataclasses import dataclass, fields

from simspec.cost import CostModel
from simspec.cost_table import CostTable

OWED = 4  # catch_up is priced up to this many rows


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a dense decoder of the Llama kind: RMSNorm, grouped-query attention without biases, SwiGLU.

    | field          | meaning                                                    |
    | -------------- | ---------------------------------------------------------- |
    | name           | label in tables                                            |
    | layers         | decoder layers                                             |
    | width          | numbers in the residual stream of a token                  |
    | heads          | query heads                                                |
    | kv_heads       | key and value heads                                        |
    | head_dim       | numbers in a head                                          |
    | hidden         | inner numbers of the SwiGLU                                |
    | vocab          | tokens                                                     |
    | tied           | the head is the embedding                                  |
    | weight_bytes   | bytes of a stored weight                                   |
    | cache_bytes    | bytes of a cached number                                   |

    ValueError unless all sizes are positive.
    """

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

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("name", "tied"):
                continue
            whole = field.name not in ("weight_bytes", "cache_bytes")
            if (
                isinstance(value, bool)
                or not isinstance(value, int if whole else (int, float))
                or not 0 < value < math.inf
            ):
                raise ValueError(
                    f"model {self.name!r}: {field.name} is {value!r}, expected a positive {'integer' if whole else 'number'}"
                )


@dataclass(frozen=True)
class Card:
    """A device's figures.

    | field     | unit    | meaning                                                                                     |
    | --------- | ------- | --------------------------------------------------------------------------------------------- |
    | name      |         | label in tables                                                                              |
    | bandwidth | B/s     | of its memory                                                                                |
    | rate      | FLOP/s  | of dense matrix products in the weights' arithmetic; a product and a sum are two              |
    | memory    | B       | what it holds                                                                                |
    | tile      | rows    | matrix products are done in so many rows at a time: the staircase                             |
    | launch    | s       | per layer, whatever it computes                                                              |
    | overhead  | s       | per pass, whatever it computes                                                               |

    ValueError unless bandwidth, rate, memory and tile are positive and launch and overhead finite and >= 0.
    """

    name: str
    bandwidth: float
    rate: float
    memory: float
    tile: int = 1
    launch: float = 0.0
    overhead: float = 0.0

    def __post_init__(self):
        for name in ("bandwidth", "rate", "memory", "tile"):
            if (
                not 0 < getattr(self, name) < math.inf
                or name == "tile"
                and not isinstance(self.tile, int)
            ):
                raise ValueError(
                    f"card {self.name!r}: {name} is {getattr(self, name)!r}, expected a positive number, tile an integer"
                )
        for name in ("launch", "overhead"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"card {self.name!r}: {name} is {getattr(self, name)!r}, expected finite seconds >= 0"
                )


# Model cards' config.json, as published with the weights; 16-bit weights and caches.
SHAPES = {
    "llama-2-7b": ModelShape("llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000),
    "llama-2-13b": ModelShape("llama-2-13b", 40, 5120, 40, 40, 128, 13824, 32000),
    "llama-2-70b": ModelShape("llama-2-70b", 80, 8192, 64, 8, 128, 28672, 32000),
    "llama-3-8b": ModelShape("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256),
    "llama-3.2-1b": ModelShape("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, tied=True),
    "tinyllama-1.1b": ModelShape("tinyllama-1.1b", 22, 2048, 32, 4, 64, 5632, 32000),
    "llama-68m": ModelShape("llama-68m", 2, 768, 12, 12, 64, 3072, 32000),
}

# NVIDIA's data sheets: memory, its bandwidth, dense bfloat16 tensor FLOP/s (half of the figure printed 'with sparsity' for Hopper).
# tile: 64 rows, the smaller side of most tiles that cuBLAS chooses from (cublasLtMatmulTile_t). No data sheet states launch times: 0.
CARDS = {
    "h100": Card("H100 SXM", 3.35e12, 989.5e12, 80e9, 64),
    "h200": Card("H200 SXM", 4.8e12, 989.5e12, 141e9, 64),
    "a100": Card("A100 80GB SXM", 2.039e12, 312e12, 80e9, 64),
    "l40s": Card("L40S", 0.864e12, 362.05e12, 48e9, 64),
}


def matrix_weights(shape: ModelShape, layers: int | None = None, head: bool = True) -> int:
    """Weights in the matrices that every row is multiplied by.

    2 d h e + 2 d g e + 3 d f a layer, and d V for the head: d = width, h, g = query and key heads, e = head_dim, f = hidden, V = vocab.
    """
    s = shape
    layer = 2 * s.width * s.head_dim * (s.heads + s.kv_heads) + 3 * s.width * s.hidden
    return layer * (s.layers if layers is None else layers) + s.width * s.vocab * head


def parameters(shape: ModelShape) -> int:
    """All weights: the matrices, two norms a layer and one at the end, and the embedding where it is not the head."""
    return (
        matrix_weights(shape)
        + (2 * shape.layers + 1) * shape.width
        + shape.width * shape.vocab * (not shape.tied)
    )


def cache_bytes(shape: ModelShape, layers: int | None = None) -> float:
    """Bytes that a token's keys and values take: 2 g e b a layer, b = bytes of a number."""
    return (
        2
        * shape.kv_heads
        * shape.head_dim
        * shape.cache_bytes
        * (shape.layers if layers is None else layers)
    )


def memory(shape: ModelShape, batch: int, context: int) -> float:
    """Bytes of all weights and of the caches of `batch` sequences of `context` tokens."""
    return parameters(shape) * shape.weight_bytes + batch * context * cache_bytes(shape)


def pass_bytes(
    shape: ModelShape,
    rows: int,
    batch: int,
    context: int,
    layers: int | None = None,
    head: bool = True,
) -> float:
    """Bytes that a pass moves: its matrices once, and keys and values of the context and of the new rows.

    `batch` sequences pass `rows` rows each behind `context` cached ones. Activations and single embedding rows are left out.
    """
    return matrix_weights(shape, layers, head) * shape.weight_bytes + batch * (
        context + rows
    ) * cache_bytes(shape, layers)


def pass_flops(
    shape: ModelShape,
    rows: int,
    batch: int,
    context: int,
    tile: int = 1,
    layers: int | None = None,
    head: bool = True,
) -> float:
    """Operations of a pass: 2 W ceil(B n / tile) tile for the matrices, and 4 h e a layer for each cached row that a row reads.

    W = matrix_weights, B n = batch x rows. Row i of n reads context + i rows (itself included), so a sequence reads
    n context + n (n + 1) / 2.
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
    card: Card,
    rows: int,
    batch: int = 1,
    context: int = 0,
    layers: int | None = None,
    head: bool = True,
) -> float:
    """Seconds of a pass: overhead + launch x layers + max(pass_bytes / bandwidth, pass_flops / rate).

    rows a sequence, batch sequences, context rows cached before them; `layers` of the model's and, or not, its head.
    Grows with rows in steps of the card's tile. ValueError for rows or batch < 1 or context < 0.
    """
    if rows < 1 or batch < 1 or context < 0:
        raise ValueError(
            f"rows is {rows}, batch {batch} and context {context}, expected at least 1, 1 and 0"
        )
    moved = pass_bytes(shape, rows, batch, context, layers, head) / card.bandwidth
    computed = pass_flops(shape, rows, batch, context, card.tile, layers, head) / card.rate
    return (
        card.overhead
        + card.launch * (shape.layers if layers is None else layers)
        + max(moved, computed)
    )


def roofline_cost(
    target: ModelShape,
    drafter: "ModelShape | float",
    card: Card,
    K: int,
    batch: int = 1,
    context: int = 1024,
    nodes: int = 0,
) -> CostModel:
    """A CostModel for a card: verify[j] is the target's pass over j + 1 rows, draft[j] the drafter's j passes over one.

    drafter is another model, or the fraction of the target's layers behind which an early exit of one more layer and the
    target's head drafts; its rounds of j >= 1 verify j rows in the layers left, as the decode loop does (EESD section 3.1). Owed
    rows enter with the first draft step, for an early exit through its own layer only. nodes > 0 prices trees too:
    verify up to so many submitted tokens, and node, what a second row adds to a draft pass. ValueError where sizes make no sense, and
    where weights and caches exceed the card's memory.
    """
    needed = roofline_memory(target, drafter, K, batch, context)
    label, shared = _label(target, drafter), _shared(target, drafter)
    if needed > card.memory:
        raise ValueError(
            f"{label} needs {needed / 1e9:.1f} GB at batch {batch} and context {context}, {card.name} has {card.memory / 1e9:.0f}: "
            "take fewer bytes a weight, less of either, or another card"
        )

    def verify(drafted: int) -> float:
        if not shared or not drafted:
            return pass_seconds(target, card, drafted + 1, batch, context)
        # the last draft token alone has not passed the shared layers; one pass still, with one overhead
        late = (
            pass_seconds(target, card, 1, batch, context + drafted, shared, False) - card.overhead
        )
        return late + pass_seconds(
            target, card, drafted + 1, batch, context, target.layers - shared
        )

    lm, layers = (target, shared + 1) if shared else (drafter, drafter.layers)
    step = [pass_seconds(lm, card, 1, batch, context + i, layers) for i in range(K)]
    entered = (1, False) if shared else (layers, True)
    first = pass_seconds(lm, card, 1, batch, context, *entered)
    owed = [
        pass_seconds(lm, card, 1 + b, batch, context - b, *entered) - first
        for b in range(1, OWED + 1)
    ]
    return CostModel(
        draft=[math.fsum(step[:j]) for j in range(K + 1)],
        verify=[verify(j) for j in range(max(K, nodes) + 1)],
        catch_up=[0.0, *(max(b, 0.0) for b in owed)],
        overhead=0.0,
        baseline=pass_seconds(target, card, 1, batch, context),
        name=f"{label}-b{batch}-c{context}",
        device=f"roofline of {card.name}",
        node=max(pass_seconds(lm, card, 2, batch, context, layers) - step[0], 0.0)
        if nodes and K
        else 0.0,
    )


def roofline_table(
    target: ModelShape,
    drafter: "ModelShape | float",
    card: Card,
    K: int,
    batches,
    contexts,
    nodes: int = 0,
) -> CostTable:
    """`roofline_cost` over both axes; cells that exceed the card's memory are None. ValueError for a size that never fits."""
    batches, contexts = sorted(set(batches)), sorted(set(contexts))
    if not batches or not contexts:
        raise ValueError(
            f"batch sizes are {batches} and contexts {contexts}, expected at least one of each"
        )
    roofline_cost(
        target, drafter, card, K, batches[0], contexts[0], nodes
    )  # says what is wrong if nothing fits

    def cell(batch, context):
        fits = roofline_memory(target, drafter, K, batch, context) <= card.memory
        return roofline_cost(target, drafter, card, K, batch, context, nodes) if fits else None

    cells = [[cell(b, c) for c in contexts] for b in batches]
    return CostTable(
        tuple(batches), tuple(contexts), cells, f"{_label(target, drafter)} on {card.name}"
    )


def roofline_memory(
    target: ModelShape, drafter: "ModelShape | float", K: int, batch: int, context: int
) -> float:
    """Bytes that target and drafter hold at the end of a round of K: all weights, and caches of context + K + 1 rows each."""
    if (
        isinstance(K, bool)
        or not isinstance(K, int)
        or not 1 <= K <= 255
        or batch < 1
        or context < OWED
    ):
        raise ValueError(
            f"K is {K}, batch {batch} and context {context}, expected 1 to 255, at least 1 and at least {OWED}"
        )
    rows = context + K + 1
    if not _shared(target, drafter):
        return memory(target, batch, rows) + memory(drafter, batch, rows)
    extra = (
        matrix_weights(target, 1, False) + 3 * target.width
    )  # the exit's layer with its norms, and the exit's norm
    return (
        memory(target, batch, rows)
        + extra * target.weight_bytes
        + batch * rows * cache_bytes(target, 1)
    )


def _shared(target, drafter) -> int:
    """Layers of the target that the drafter runs: 0 for a model of its own."""
    if isinstance(drafter, ModelShape):
        if drafter.vocab != target.vocab:
            raise ValueError(
                f"drafter {drafter.name!r} has {drafter.vocab} tokens, {target.name!r} {target.vocab}: take one with the same tokenizer"
            )
        return 0
    if isinstance(drafter, bool) or not isinstance(drafter, (int, float)) or not 0 < drafter < 1:
        raise ValueError(
            f"drafter is {drafter!r}, expected a model, or an early exit's share of the layers, between 0 and 1"
        )
    if target.layers < 2:
        raise ValueError(
            f"model {target.name!r} has {target.layers} layer, expected at least 2 for an early exit"
        )
    return min(max(round(drafter * target.layers), 1), target.layers - 1)


def _label(target, drafter) -> str:
    return f"{target.name} {drafter.name if isinstance(drafter, ModelShape) else f'exit {_shared(target, drafter)}'}"


def known(table: dict, kind: str, name: str):
    """The entry of SHAPES or CARDS; ValueError that lists the names."""
    if name not in table:
        raise ValueError(f"{kind} {name!r} is unknown, expected one of {', '.join(table)}")
    return table[name]

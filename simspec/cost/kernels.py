"""Costs of a GPU from measured times of its kernels, and constants of an engine.

A pass is the sum of its matrix products, attention, experts and all-reduces. Embedding, norms,
rotary embedding, sampling and the host are no part of the tables: EngineConstants price them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, inf

import numpy as np

from simspec.cost.kernel_times import STATUS, KernelTimes, Time
from simspec.cost.model import CostModel
from simspec.cost.provenance import CostOrigin
from simspec.cost.shapes import DEVICES, Drafter, DraftHead, ModelShape, cache_bytes, parameters
from simspec.cost.table import CostTable

CAPTURED = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Rows that vLLM captures graphs of by default; a pass runs at the next of them."""
MOST_BACKLOG = 4
"""catch_up is priced up to this many rows."""


@dataclass(frozen=True)
class EngineConstants:
    """Seconds of an engine outside of the kernels; all finite and >= 0, ValueError otherwise.

    | field | seconds of |
    | --- | --- |
    | step | each pass of the target: host, scheduling, and small kernels |
    | row | each row of it: logits and sampling |
    | draft | each pass of the drafter |
    """

    step: float = 0.0
    row: float = 0.0
    draft: float = 0.0

    def __post_init__(self) -> None:
        for name in TERMS:
            if not 0 <= getattr(self, name) < 1e3:
                raise ValueError(f"{name} is {getattr(self, name)}, expected seconds >= 0")


TERMS = "step", "row", "draft"


@dataclass(frozen=True)
class Part:
    """One kernel of a pass: `count` calls that take `time` each."""

    name: str
    count: int
    time: Time

    @property
    def seconds(self) -> float:
        """Of all calls."""
        return self.count * self.time.seconds


@dataclass(frozen=True)
class KernelPrices:
    """Times and constants that price a pass.

    | field | meaning |
    | --- | --- |
    | times | of the device and the engine |
    | constants | of the engine; None: kernels alone |
    | tp | GPUs that share each layer |
    | captured | rows that graphs were captured at; a pass runs at the next; (): as it is |
    """

    times: KernelTimes
    constants: EngineConstants | None = None
    tp: int = 1
    captured: tuple[int, ...] = field(default=())

    @property
    def held(self) -> EngineConstants:
        """The constants, zeros for None."""
        return self.constants or EngineConstants()

    def padded(self, rows: int) -> int:
        """The rows that run."""
        return min((size for size in self.captured if size >= rows), default=rows)


def pass_parts(
    prices: KernelPrices,
    model: ModelShape | DraftHead,
    rows: int,
    batch: int = 1,
    context: float = 0.0,
    sampled: int | None = None,
) -> tuple[Part, ...]:
    """The kernels of a pass over `rows` rows of `batch` sequences of `context` cached tokens.

    Products take all rows (padded to a captured size), the head `sampled` of them (None: all).
    Layers are 16-bit, or fp8 where weight_bytes is 1; the head and caches are 16-bit.
    Attention takes rows / batch rows a sequence. A tensor-parallel layer ends in two all-reduces
    of rows x width 16-bit numbers, the embedding in one. ValueError for what is not measured.
    """
    head = model if isinstance(model, DraftHead) else None
    shape = head.shape if head is not None else model
    assert isinstance(shape, ModelShape)
    if rows < batch or batch < 1 or context < 0:
        raise ValueError(
            f"rows are {rows}, batch {batch} and context {context}, expected a row of each sequence"
        )
    tp, times, m = prices.tp, prices.times, prices.padded(rows)
    if tp < 1 or shape.heads % tp or shape.hidden % tp:
        raise ValueError(f"{shape.name!r} does not divide by {tp} GPUs, expected 1, 2, 4 or 8")
    dtype = {2.0: "bf16", 1.0: "fp8"}.get(shape.weight_bytes)
    if dtype is None:
        raise ValueError(f"a weight has {shape.weight_bytes} bytes, expected 2 (bf16) or 1 (fp8)")
    heads, keys, width = shape.heads // tp, max(shape.kv_heads // tp, 1), shape.width
    e, inputs = shape.head_dim, head.inputs if head is not None else 1

    def product(name: str, n: int, k: int, count: int = shape.layers) -> Part:
        return Part(f"{name} {n}x{k}", count, times.product(m, n, k, dtype))

    parts = [
        product("qkv", (heads + 2 * keys) * e, inputs * width),
        Part("attention", shape.layers, times.attend((e, heads, keys), batch, context,
                                                      rows / batch)),
        product("output", width, heads * e),
    ]  # fmt: skip
    if shape.experts:
        sizes = (width, shape.hidden, shape.topk, shape.experts)
        parts.append(product("router", shape.experts, width))
        parts.append(Part("experts", shape.layers, times.route(sizes, m, dtype, tp)))
    else:
        parts.append(product("gate and up", 2 * shape.hidden // tp, width))
        parts.append(product("down", width, shape.hidden // tp))
    logits = m if sampled is None else prices.padded(sampled)
    vocab = ceil(shape.vocab / tp)
    parts.append(Part(f"head {vocab}x{width}", 1, times.product(logits, vocab, width, "bf16")))
    if tp > 1:
        reduced = times.reduce(tp, 2.0 * m * width)
        parts.append(Part("all-reduce", 2 * shape.layers + 1, reduced))
    return tuple(parts)


def _fusion(prices: KernelPrices, head: DraftHead, rows: int) -> float:
    width, m = head.shape.width, prices.padded(rows)
    return prices.times.product(m, width, head.fused * width, "bf16").seconds


def pass_seconds(
    prices: KernelPrices,
    model: ModelShape | DraftHead,
    rows: int,
    batch: int = 1,
    context: float = 0.0,
    sampled: int | None = None,
) -> float:
    """Seconds of the kernels of a pass, see `pass_parts`; without constants."""
    return float(sum(p.seconds for p in pass_parts(prices, model, rows, batch, context, sampled)))


def pass_shares(parts: Iterable[Part]) -> dict[str, float]:
    """{status: share of the seconds} in the order of STATUS."""
    parts = list(parts)
    total = sum(part.seconds for part in parts)
    return {
        status: sum(part.seconds for part in parts if part.time.status == status) / total
        for status in STATUS
    }


def _draft_seconds(
    prices: KernelPrices, drafter: Drafter, batch: int, context: float, count: int
) -> float:
    """Seconds of a draft of `count` tokens.

    The first pass of a head reads all rows of the verification before it, count + 1 a sequence, as
    vLLM's does; its logits are of one.
    """
    if drafter is None or not count:
        return 0.0
    seconds = prices.held.draft * count
    for i in range(count):
        rows = batch * (count + 1 if isinstance(drafter, DraftHead) and not i else 1)
        seconds += pass_seconds(prices, drafter, rows, batch, context + i, batch)
        if isinstance(drafter, DraftHead) and (drafter.always or not i):
            seconds += _fusion(prices, drafter, rows)
    return seconds


def kernel_cost(
    prices: KernelPrices,
    target: ModelShape,
    drafter: Drafter,
    K: int,
    batch: int = 1,
    context: int = 1024,
    nodes: int = 0,
) -> CostModel:
    """A CostModel of `batch` sequences: verify[j] is batch (j + 1) rows, passes[i] batch + i rows.

    Products are measured by the rows of a pass, so `passes` prices ragged drafts of a batch as
    they are; attention takes their mean rows a sequence.

    overhead is constants.step; a plain step has it too. kv_verify and kv_draft are the slopes of
    attention around `context`, so that other contexts are priced. nodes > 0 prices trees: verify
    up to `nodes` tokens. ValueError for sizes, and for what does not fit the device.
    """
    needed, memory = (
        needed_memory(prices, target, drafter, K, batch, context),
        device_memory(prices),
    )
    if needed > memory:
        raise ValueError(
            f"{_label(target, drafter)} needs {needed / 1e9:.1f} GB on each of {prices.tp} GPUs at "
            f"batch {batch} and context {context}, {prices.times.device} has {memory / 1e9:.0f}: "
            "take more GPUs, fewer bytes a weight, or less of either"
        )
    held = prices.held

    def target_pass(rows: int) -> float:
        return pass_seconds(prices, target, rows, batch, context) + held.row * rows

    passes = np.array([target_pass(rows) for rows in range(batch, batch * (K + 1) + 1)])

    def backlog(count: int) -> float:
        if drafter is None:
            return 0.0
        longer = pass_seconds(prices, drafter, batch * (1 + count), batch, context, batch)
        return max(longer - pass_seconds(prices, drafter, batch, batch, context), 0.0)

    kv_draft, row = 0.0, 0.0
    if drafter is not None:
        kv_draft = _cached_token(prices, drafter, batch, context)
        more = pass_seconds(prices, drafter, batch + 16, batch + 16, context)
        row = max(more - pass_seconds(prices, drafter, batch, batch, context), 0.0) / 16
    draft = [_draft_seconds(prices, drafter, batch, context, j) for j in range(K + 1)]
    return CostModel(
        draft=np.array(draft),
        verify=np.array([target_pass(batch * (j + 1)) for j in range(max(K, nodes) + 1)]),
        catch_up=np.array([backlog(b) for b in range(MOST_BACKLOG + 1)]),
        overhead=held.step,
        baseline=held.step + float(passes[0]),
        name=f"{_label(target, drafter)}-b{batch}-c{context}",
        device=f"kernels of {prices.times.label}",
        node=row,
        kv_verify=_cached_token(prices, target, batch, context),
        kv_draft=kv_draft,
        context=float(context),
        passes=passes if batch > 1 else None,
        origin=kernel_origin(prices, target, drafter),
    )


def _cached_token(
    prices: KernelPrices, model: ModelShape | DraftHead, batch: int, context: int
) -> float:
    """Seconds of each further cached token around this context, at most those of all over all."""
    low, high = context // 2, 2 * context
    if not context:
        low, high = 0, 1024
    shape = model.shape if isinstance(model, DraftHead) else model
    heads = shape.head_dim, shape.heads // prices.tp, max(shape.kv_heads // prices.tp, 1)
    near, at, far = (prices.times.attend(heads, batch, c).seconds for c in (low, context, high))
    slope = max(far - near, 0.0) / (high - low)
    # the cost may be moved to an empty cache: what it loses then is less than what it holds
    return shape.layers / batch * min(slope, at / context if context else slope)


def needed_memory(
    prices: KernelPrices, target: ModelShape, drafter: Drafter, K: int, batch: int, context: int
) -> float:
    """Bytes on each GPU at the end of a round of K; ValueError for sizes that are none.

    Weights and caches divided by the GPUs; activations, graphs and the engine are left out.
    """
    if not 1 <= K <= 255 or batch < 1 or context < 0:
        raise ValueError(
            f"K is {K}, batch {batch} and context {context}, expected 1 to 255, at least 1 and 0"
        )
    if isinstance(drafter, ModelShape) and drafter.vocab != target.vocab:
        raise ValueError(
            f"drafter {drafter.name!r} has {drafter.vocab} tokens, {target.name!r} "
            f"{target.vocab}: take one with the same tokenizer"
        )
    shapes = [target]
    weights = 0.0
    if drafter is not None:
        shapes.append(drafter.shape if isinstance(drafter, DraftHead) else drafter)
    if isinstance(drafter, DraftHead):
        s = drafter.shape
        more = drafter.fused * s.width + (drafter.inputs - 1) * s.head_dim * (
            s.heads + 2 * s.kv_heads
        )
        weights = s.width * more * s.weight_bytes
    weights += sum(parameters(s) * s.weight_bytes for s in shapes)
    return (weights + batch * (context + K + 1) * sum(map(cache_bytes, shapes))) / prices.tp


def device_memory(prices: KernelPrices) -> float:
    """Bytes of the device; infinite where `DEVICES` does not have it."""
    device = DEVICES.get(prices.times.device.removesuffix("_sxm"))
    return inf if device is None else device.memory


def kernel_table(
    prices: KernelPrices,
    target: ModelShape,
    drafter: Drafter,
    K: int,
    batches: Iterable[int],
    contexts: Iterable[int],
    nodes: int = 0,
) -> CostTable:
    """`kernel_cost` over both axes; None where it does not fit. ValueError where nothing does."""
    batches, contexts = sorted(set(batches)), sorted(set(contexts))
    if not batches or not contexts:
        raise ValueError("no batch size or no context is given, expected one of each")
    memory = device_memory(prices)
    cells = []
    for batch in batches:
        fits = [needed_memory(prices, target, drafter, K, batch, c) <= memory for c in contexts]
        # the smallest cell raises its error if nothing fits
        cells.append(
            tuple(
                kernel_cost(prices, target, drafter, K, batch, context, nodes)
                if fit or (batch, context) == (batches[0], contexts[0])
                else None
                for context, fit in zip(contexts, fits)
            )
        )
    name = f"{_label(target, drafter)} on {prices.times.label}"
    return CostTable(tuple(batches), tuple(contexts), tuple(cells), name)


def kernel_origin(prices: KernelPrices, target: ModelShape, drafter: Drafter) -> CostOrigin:
    """Device, number type and engine; `products` say which kernels were measured at their size.

    A product is measured where its weight was, and linear between measured rows.
    """
    times = prices.times
    models = {"target": target, "drafter": drafter}
    known = {}
    for role, model in models.items():
        if model is not None:
            for part in pass_parts(prices, model, 1, 1, 1.0):
                known[f"{role} {part.name}"] = part.time.status
    engine = f"{times.engine} {times.version}, kernels"
    return CostOrigin(
        device=f"{times.device} x{prices.tp}" if prices.tp > 1 else times.device,
        dtype="fp8" if target.weight_bytes == 1 else "bfloat16",
        engines={role: engine for role, model in models.items() if model is not None},
        versions={"kernel times": times.source} if times.source else {},
        products=known,
    )


def _label(target: ModelShape, drafter: Drafter) -> str:
    if drafter is None:
        return f"{target.name} ngram"
    return f"{target.name} {(drafter.shape if isinstance(drafter, DraftHead) else drafter).name}"

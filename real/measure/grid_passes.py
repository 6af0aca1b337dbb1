"""Passes of a grid: the target over w rows, and a drafter's step, on inputs that stay in place."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from real.measure.device_limits import DeviceSpeeds
from real.measure.pass_latency import TARGET, Key, minimum_latency
from real.model.decoder import Decoder
from real.model.kv_cache import KVCache, StaticKVCache
from real.model.tree_mask import ancestor_mask, chain
from simspec.cost.shapes import ModelShape

Pass = Callable[[], tuple[Tensor, ...]]


def rows_pass(
    model: Decoder,
    cache: KVCache,
    token: Tensor,
    start: int,
    static: bool = True,
    layer_forward: Callable | None = None,
) -> Pass:
    """A pass of `token [batch, n]` behind `start` cached rows, giving logits `[batch, n, vocab]`.

    | static | attention covers | as in |
    | --- | --- | --- |
    | True | all rows of the cache under a mask | captured passes |
    | False | the first `start` + n rows | eager passes |

    Its inputs are allocated here, once. The cache needs room for `start` + n rows.
    `layer_forward` runs compiled layers (`real.model.cuda_graphs.compiled_layers`).
    """
    layers = range(len(model.layers))
    rows = token.shape[1]
    rotation, mask, view, first = _positions(model, cache, start, rows, static, layer_forward)
    return lambda: (
        model.logits(model.run(model.embed(token), layers, rotation, mask, view, first)),
    )


def drafter_step(
    drafter: Any,
    target: Decoder,
    batch: int,
    context: int,
    random: torch.Generator,
    static: bool = True,
    layer_forward: Callable | None = None,
) -> Pass:
    """One row through the own layers and head of a `Drafter`, behind `context` cached rows."""
    token = random_tokens(target, batch, 1, random)
    if (lm := drafter.lm) is not None:
        cache = random_cache(lm, batch, round_up(context + 1), random)
        return rows_pass(lm, cache, token, context, static, layer_forward)
    head = drafter.head
    feature = torch.empty(
        batch, 1, target.config.width, dtype=target.dtype, device=target.device
    ).normal_(generator=random)
    if hasattr(head, "stacks"):
        return lambda: (head.logits(target, 0, head.stacks[0](feature)),)
    cache = random_cache(target, batch, round_up(context + 1), random, len(head.layers))
    rotation, mask, view, first = _positions(target, cache, context, 1, static, layer_forward)
    return lambda: (
        target.head(head.estimate(target, feature, token, rotation, mask, view, first)),
    )


def pass_minimum(key: Key, shape: ModelShape, drafter: Any, speeds: DeviceSpeeds) -> float:
    """`minimum_latency` of a pass of the target, or of a step of the `Drafter`."""
    part, batch, context, width = key
    if part == TARGET or drafter is None:
        return minimum_latency(shape, speeds, width, batch, context)
    if (lm := drafter.lm) is not None:
        names = ("width", "heads", "kv_heads", "head_dim", "hidden", "vocab", "tied")
        sizes = {name: getattr(lm.config, name) for name in names}
        lm_shape = replace(shape, layers=len(lm.layers), **sizes)
        return minimum_latency(lm_shape, speeds, 1, batch, context)
    square = shape.width**2
    if hasattr(drafter.head, "stacks"):
        return minimum_latency(shape, speeds, 1, batch, context, 0, square)
    layers = len(drafter.head.layers)
    return minimum_latency(shape, speeds, 1, batch, context, layers, 2 * square)


def random_cache(
    model: Decoder, batch: int, rows: int, random: torch.Generator, layers: int | None = None
) -> KVCache:
    """A cache of `rows` rows of random numbers, of all layers or the first `layers`."""
    cache = model.cache(len(model.layers) if layers is None else layers, batch, rows)
    for half in (cache.key, cache.value):
        half.normal_(generator=random)
    return cache


def random_tokens(model: Decoder, batch: int, rows: int, random: torch.Generator) -> Tensor:
    """int64 `[batch, rows]` random tokens."""
    vocab = model.config.vocab
    return torch.randint(vocab, (batch, rows), generator=random, device=model.device)


def round_up(rows: int) -> int:
    """The next multiple of 8: kernels copy masks of other widths."""
    return -(-rows // 8) * 8


def _positions(
    model: Decoder,
    cache: KVCache,
    start: int,
    rows: int,
    static: bool,
    layer_forward: Callable | None,
) -> tuple:
    """(rotation, mask, cache, start) of a chain, as `Decoder.run` takes them."""
    position = torch.arange(start, start + rows, device=model.device)
    rotation = model.rotation(position)
    if not static:
        return rotation, ancestor_mask(start, chain(rows), model.device), cache, start
    visible = torch.arange(cache.key.shape[3], device=model.device) <= position[:, None]
    mask = torch.zeros_like(visible, dtype=model.dtype).masked_fill(~visible, -torch.inf)
    return rotation, mask, StaticKVCache(cache.key, cache.value, position, layer_forward), 0

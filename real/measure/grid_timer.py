"""Times the passes of a grid on random models: captured where asked, in random order."""

import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from real.drafters import random_drafter
from real.measure.device_limits import DeviceSpeeds, Timer, Work, elapsed, quantiles
from real.measure.latency_grid import (
    TARGET,
    GridSettings,
    Key,
    PassLatency,
    minimum_latency,
    pass_latency,
)
from real.model.cuda_graphs import capture, compiled_layers
from real.model.decoder import Decoder
from real.model.kv_cache import KVCache, StaticKVCache
from real.model.layer import DecoderLayer
from real.model.random_models import free, random_decoder
from real.model.runner import ancestor_mask, chain
from simspec.cost.shapes import ModelShape, cache_bytes

Pass = Callable[[], tuple[Tensor, ...]]


def rows_pass(
    model: Decoder,
    cache: KVCache,
    token: Tensor,
    start: int,
    static: bool = True,
    layer_forward: Callable | None = None,
) -> Pass:
    """A pass of `token [batch, n]` after `start` cached rows, giving logits `[batch, n, vocab]`.

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
    """One row through the own layers and head of a `Drafter`, after `context` cached rows."""
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


class GridTimer:
    """Random models of one shape, whose passes at one batch and context are timed together."""

    def __init__(
        self, shape: ModelShape, settings: GridSettings, max_width: int, timer: Timer | None = None
    ):
        self.shape, self.settings = shape, settings
        self.max_width, self.timer = max_width, timer
        self.compile_options = {"mode": settings.mode} if settings.mode else {}
        self.decoder = random_decoder(shape, settings.dtype, settings.device, settings.seed)
        self.random = torch.Generator(self.decoder.device).manual_seed(settings.seed)
        self.order = np.random.default_rng(settings.seed)
        with torch.device(self.decoder.device):  # else heads are drawn on the host first
            self.drafters = {
                name: random_drafter(name, self.decoder, shape, 1, settings.seed)
                for name in settings.drafters
            }
        if settings.graphs:
            self._fuse_projections()
        if settings.compiled:
            self._compile()
        self._release()

    def latencies(self, keys: Sequence[Key], speeds: DeviceSpeeds) -> list[PassLatency]:
        """The passes of these keys, all of one batch and context."""
        seconds: dict[Key, list[float] | None] = {key: None for key in keys}
        _, batch, context, _ = keys[0]
        rows = round_up(context + self.max_width)
        if self._room(batch, rows) <= 0.9 * free(str(self.decoder.device)):
            seconds |= self._time_together(keys, rows)
        self._release()
        minimum = {
            key: pass_minimum(key, self.shape, self.drafters.get(key[0]), speeds) for key in keys
        }
        measured = {key: None if s is None else quantiles(s) for key, s in seconds.items()}
        return [pass_latency(key, minimum[key], measured[key]) for key in keys]

    @torch.inference_mode()
    def _time_together(self, keys: Sequence[Key], rows: int) -> dict[Key, list[float] | None]:
        """Seconds of each pass, in a new random order each repeat, after one that does not count.

        Passes that do not fit the device together are timed in halves; None for one that does not
        fit alone.
        """
        _, batch, _, _ = keys[0]
        cache: KVCache | None = None
        works: dict[Key, Work] = {}
        try:
            cache = random_cache(self.decoder, batch, rows, self.random)
            # one memory pool: no two passes run at once
            on_cuda = self.decoder.device.type == "cuda"
            pool = torch.cuda.graph_pool_handle() if on_cuda else None
            works = {key: self._work(key, cache, pool) for key in keys}
            turns = [
                keys[i]
                for _ in range(self.settings.repeats + 1)
                for i in self.order.permutation(len(keys))
            ]
            seconds = elapsed([works[key] for key in turns], self.decoder.device, self.timer)
            counted = list(zip(turns, seconds))[len(keys) :]
            return {key: [s for k, s in counted if k == key] for key in keys}
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
        cache, works = None, {}  # frees their memory
        self._release()
        half = len(keys) // 2
        if not half:
            return {keys[0]: None}
        return self._time_together(keys[:half], rows) | self._time_together(keys[half:], rows)

    @torch.inference_mode()
    def _compile(self) -> None:
        # two sizes compile as dynamic ones: else kernels are compiled for every context
        for size in (2, 3):
            with compiled_layers(**self.compile_options) as layer_forward:
                cache = random_cache(self.decoder, size, 8 * size, self.random)
                token = random_tokens(self.decoder, size, size, self.random)
                rows_pass(self.decoder, cache, token, 2 * size, layer_forward=layer_forward)()

    def _work(self, key: Key, cache: KVCache, pool) -> Work:
        compiled, graphs = self.settings.compiled, self.settings.graphs
        compiling = compiled_layers(**self.compile_options) if compiled else nullcontext()
        with compiling as layer_forward:
            function = self._pass(key, cache, layer_forward)
            return capture(function, self.decoder.device, pool) if graphs else function

    def _pass(self, key: Key, cache: KVCache, layer_forward: Callable | None) -> Pass:
        part, batch, context, width = key
        decoder, static = self.decoder, self.settings.graphs
        if part == TARGET:
            token = random_tokens(decoder, batch, width, self.random)
            return rows_pass(decoder, cache, token, context, static, layer_forward)
        drafter = self.drafters[part]
        return drafter_step(drafter, decoder, batch, context, self.random, static, layer_forward)

    def _room(self, batch: int, rows: int) -> float:
        """Bytes of the cache and, twice, of the widest pass's logits and SwiGLU activations."""
        s = self.shape
        activations = 2 * self.max_width * (s.vocab + 2 * s.hidden) * s.cache_bytes
        return batch * (rows * cache_bytes(s) + activations)

    def _fuse_projections(self) -> None:
        """Settings of captured passes."""
        heads = (m for drafter in self.drafters.values() for m in vars(drafter).values())
        for model in (self.decoder, *(m for m in heads if isinstance(m, nn.Module))):
            for layer in model.modules():
                if isinstance(layer, DecoderLayer) and not layer.fused:
                    layer.fuse_projections()

    def _release(self) -> None:
        gc.collect()
        if self.decoder.device.type == "cuda":
            torch.cuda.empty_cache()


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out; a capture may end in another error raised while handling that one."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False

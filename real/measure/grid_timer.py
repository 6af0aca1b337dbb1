"""Times the passes of a grid on random models: captured where asked, in random order."""

import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn

from real.drafters import random_drafter
from real.measure.device_limits import DeviceSpeeds
from real.measure.grid_passes import (
    Pass,
    drafter_step,
    pass_minimum,
    random_cache,
    random_tokens,
    round_up,
    rows_pass,
)
from real.measure.grid_settings import GridSettings
from real.measure.pass_latency import TARGET, Key, PassLatency, pass_latency
from real.measure.timer import Timer, Work, elapsed, quantiles
from real.model.cuda_graphs import capture, compiled_layers
from real.model.kv_cache import KVCache
from real.model.layer import DecoderLayer
from real.model.random_models import free, random_decoder
from simspec.cost.shapes import ModelShape, cache_bytes


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
        """As in captured passes (`real.decode.engine.engage`)."""
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

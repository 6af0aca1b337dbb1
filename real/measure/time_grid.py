"""A Ladder measured: passes of random models of any size, captured where asked, timed in random order."""

import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from real.drafters import drafter_shapes, random_drafter
from real.measure.device_limits import speeds
from real.measure.latency_grid import TARGET, Cell, Ladder, cell, floor
from real.measure.timer import laps, spread
from real.model.cuda_graphs import capture, compiled_layers
from real.model.decoder import Decoder
from real.model.kv_cache import KVCache, StaticKVCache
from real.model.layer import DecoderLayer
from real.model.random_models import check_room, free, random_decoder
from real.model.tree_mask import ancestor_mask, chain
from real.progress import Progress, quiet
from real.provenance import device_name
from simspec.model_shape import ModelShape, cache_bytes

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 17, 24, 32)
BATCHES = (1, 4, 16, 64)
CONTEXTS = (128, 1024, 4096)


def ladder(
    shape: ModelShape,
    widths: Sequence[int] = WIDTHS,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cuda",
    repeats: int = 20,
    graphs: bool = True,
    compiled: bool | None = None,
    drafters: Sequence[str] = (),
    seed: int = 0,
    known: Ladder | None = None,
    keep: Callable[[Ladder], None] = lambda made: None,
    progress: Progress = quiet,
    timer: Callable[[], float] | None = None,
    mode: str | None = None,
) -> Ladder:
    """Seconds of a pass of w rows a sequence through the whole decoder and its head (logits of all rows), for each w, batch and context.

    Weights, text and cached rows are random. With `graphs` passes are captured (`real.model.cuda_graphs`), so that no Python runs in them: all that
    they read stays where it is, and attention covers all rows that the widest pass needs, masked. `compiled` fuses their layers before,
    by default on CUDA; `mode` is torch.compile's. Without, they are issued kernel by kernel. All widths of a batch and context are
    measured `repeats` times, in a new random order each time, after one turn that does not count; `laps` says by which clock.
    `drafters` are `random_drafter`'s (but prompt_lookup): one row through a drafter's own layers and head, at the same places.

    Cells of `known` are not measured again, and its speeds are taken over. `keep` gets what there is after each batch and context.
    A cell that the device has no room for has no times. ValueError for sizes that make no sense, for other settings than `known`'s,
    and where the weights alone do not fit.
    """
    widths, batches, contexts = (
        _sizes(*x)
        for x in (("widths", widths, 1), ("batches", batches, 1), ("contexts", contexts, 0))
    )
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}, expected at least 1")
    size = torch.empty((), dtype=dtype).element_size()
    shape = replace(shape, weight_bytes=float(size), cache_bytes=float(size))
    extra = [s for text in drafters for s in _drafter_shapes(text, shape)]
    card = torch.device(device).type == "cuda"
    if compiled and not (card and graphs):
        raise ValueError(
            "layers are compiled for captured passes on a card only: take graphs on cuda, or leave compiled out"
        )
    compiled = card and graphs if compiled is None else compiled
    said = {
        "device": device_name(device),
        "dtype": str(dtype).removeprefix("torch."),
        "shape": shape,
    }
    said |= {"graphed": graphs, "fused": compiled, "repeats": repeats}
    if known is not None and known.settings != said:
        odd = next(name for name in said if known.settings[name] != said[name])
        raise ValueError(
            f"the cells there have {odd} {known.settings[odd]}, this run has {said[odd]}: write to another file"
        )
    parts = [(TARGET, w) for w in widths] + [(text, 1) for text in dict.fromkeys(drafters)]
    had = {c.key for c in known.cells} if known else set()
    wanted = [
        [key for p, w in parts if (key := (p, b, c, w)) not in had]
        for c in contexts
        for b in batches
    ]
    total = sum(map(len, wanted))
    if known is not None and not total:
        return known
    check_room([shape, *extra], dtype, contexts[0] + widths[-1], device)
    found = known or Ladder(**said, speeds=speeds(dtype, device, timer=timer))
    climb = _Climb(
        shape, dtype, device, drafters, graphs, compiled, repeats, seed, timer, widths[-1], mode
    )
    done = 0
    for keys in filter(None, wanted):
        found = found.added(climb.cells(keys, found.speeds))
        done += len(keys)
        keep(found)
        progress("timing", done, total)
    return found


class _Climb:
    """The models, and what is measured of them at one batch and context."""

    def __init__(
        self,
        shape,
        dtype,
        device,
        drafters,
        graphs,
        compiled,
        repeats,
        seed,
        timer,
        widest,
        mode=None,
    ):
        self.shape, self.widest, self.repeats, self.timer, self.graphs, self.compiled = (
            shape,
            widest,
            repeats,
            timer,
            graphs,
            compiled,
        )
        self.how = {"mode": mode} if mode else {}
        self.decoder = random_decoder(shape, dtype, device, seed)
        self.random = torch.Generator(self.decoder.device).manual_seed(seed)
        self.order = np.random.default_rng(seed)
        with torch.device(self.decoder.device):  # else parts are drawn on the host first
            self.drafters = {
                text: random_drafter(text, self.decoder, shape, 1, seed)
                for text in dict.fromkeys(drafters)
            }
        if graphs:
            _pack(
                self.decoder,
                *(
                    m
                    for each in self.drafters.values()
                    for m in vars(each).values()
                    if isinstance(m, nn.Module)
                ),
            )
        if compiled:
            self._prime()
        self._release()

    def cells(self, keys: list[tuple], speeds) -> list[Cell]:
        """The cells of these keys, all of one batch and context."""
        floors = {key: self._floor(key, speeds) for key in keys}
        found = {key: None for key in keys}
        _, batch, context, _ = keys[0]
        rows = _even(context + self.widest)
        if self._room(batch, rows) <= 0.9 * free(str(self.decoder.device)):
            found |= self._together(keys, rows)
        self._release()
        return [
            cell(key, floors[key], None if found[key] is None else spread(found[key]))
            for key in keys
        ]

    @torch.inference_mode()
    def _together(self, keys: list[tuple], rows: int) -> dict:
        """key -> seconds; in halves where the passes of all do not fit the device at once, None where one alone does not."""
        _, batch, context, _ = keys[0]
        try:
            cache = _filled(self.decoder, batch, rows, self.random)
            pool = (
                torch.cuda.graph_pool_handle() if self.decoder.device.type == "cuda" else None
            )  # no two run at once
            works = {key: self._work(key, cache, pool) for key in keys}
            turns = [
                [keys[i] for i in self.order.permutation(len(keys))]
                for _ in range(self.repeats + 1)
            ]
            flat = [key for turn in turns for key in turn]
            seconds = laps([works[key] for key in flat], self.decoder.device, self.timer)
            return {
                key: [s for at, s in list(zip(flat, seconds))[len(keys) :] if at == key]
                for key in keys
            }
        except RuntimeError as error:
            if not _short(error):
                raise
        cache = works = None
        self._release()
        half = len(keys) // 2
        return (
            self._together(keys[:half], rows) | self._together(keys[half:], rows)
            if half
            else {keys[0]: None}
        )

    @torch.inference_mode()
    def _prime(self) -> None:
        # sizes seen to differ at once are compiled as open ones: else kernels are made for every context
        for few in (2, 3):
            with compiled_layers(**self.how) as layer_forward:
                rows_pass(
                    self.decoder,
                    _filled(self.decoder, few, 8 * few, self.random),
                    self._tokens(few, few),
                    2 * few,
                    layer_forward=layer_forward,
                )()

    def _work(self, key: tuple, cache: KVCache, pool) -> Callable[[], object]:
        compiling = compiled_layers(**self.how) if self.compiled else nullcontext()
        with compiling as layer_forward:
            if key[0] == TARGET:
                function = self._pass(key, cache, layer_forward)
            else:
                function = self._step(key, layer_forward)
            return capture(function, self.decoder.device, pool) if self.graphs else function

    def _pass(self, key: tuple, cache: KVCache, layer_forward=None) -> Callable[[], tuple]:
        _, batch, context, width = key
        token = self._tokens(batch, width)
        return rows_pass(self.decoder, cache, token, context, self.graphs, layer_forward)

    def _step(self, key: tuple, layer_forward=None) -> Callable[[], tuple]:
        part, batch, context, _ = key
        drafter, token, target = self.drafters[part], self._tokens(batch, 1), self.decoder
        if (lm := drafter.lm) is not None:
            return rows_pass(
                lm,
                _filled(lm, batch, _even(context + 1), self.random),
                token,
                context,
                self.graphs,
                layer_forward,
            )
        learnt = drafter.head
        feature = torch.empty(
            batch, 1, target.config.width, dtype=target.dtype, device=target.device
        ).normal_(generator=self.random)
        if hasattr(learnt, "stacks"):
            return lambda: (learnt.logits(target, 0, learnt.stacks[0](feature)),)
        cache = _filled(target, batch, _even(context + 1), self.random, len(learnt.layers))
        rotation, mask, held, start = _places(target, cache, context, 1, self.graphs, layer_forward)
        return lambda: (
            target.head(learnt.estimate(target, feature, token, rotation, mask, held, start)),
        )

    def _floor(self, key: tuple, speeds) -> float:
        part, batch, context, width = key
        if part == TARGET:
            return floor(self.shape, speeds, width, batch, context)
        drafter, deep = self.drafters[part], self.shape.width**2
        if (lm := drafter.lm) is not None:
            s = lm.config
            sizes = {
                name: getattr(s, name)
                for name in ("width", "heads", "kv_heads", "head_dim", "hidden", "vocab", "tied")
            }
            return floor(
                replace(self.shape, layers=len(lm.layers), **sizes), speeds, 1, batch, context
            )
        if hasattr(drafter.head, "stacks"):
            return floor(self.shape, speeds, 1, batch, context, 0, deep)
        return floor(self.shape, speeds, 1, batch, context, len(drafter.head.layers), 2 * deep)

    def _room(self, batch: int, rows: int) -> float:
        """Bytes of the cache, and of the largest that the widest pass makes: its logits and what is inside a SwiGLU, twice."""
        s = self.shape
        return batch * (
            rows * cache_bytes(s) + 2 * self.widest * (s.vocab + 2 * s.hidden) * s.cache_bytes
        )

    def _tokens(self, batch: int, rows: int):
        return torch.randint(
            self.shape.vocab, (batch, rows), generator=self.random, device=self.decoder.device
        )

    def _release(self) -> None:
        gc.collect()
        if self.decoder.device.type == "cuda":
            torch.cuda.empty_cache()


def rows_pass(
    model: Decoder,
    cache: KVCache,
    token: Tensor,
    start: int,
    still: bool = True,
    layer_forward: Callable | None = None,
) -> Callable[[], tuple[Tensor]]:
    """A pass of `token [batch, n]` behind `start` cached rows, giving logits `[batch, n, vocab]`; what it reads is made here, once.

    `still` takes the cache as it is, all its rows under a mask, as captured passes do; else the first `start` + n, as passes do that
    are issued one by one. The cache needs room for `start` + n rows.
    """
    layers, (rotation, mask, held, first) = (
        range(len(model.layers)),
        _places(model, cache, start, token.shape[1], still, layer_forward),
    )
    return lambda: (
        model.logits(model.run(model.embed(token), layers, rotation, mask, held, first)),
    )


def _places(
    model: Decoder, cache: KVCache, start: int, rows: int, still: bool, layer_forward=None
) -> tuple:
    """(rotation, mask, cache, start) of a chain, as `Decoder.run` takes them."""
    position = torch.arange(start, start + rows, device=model.device)
    rotation = model.rotation(position)
    if not still:
        return rotation, ancestor_mask(start, chain(rows), model.device), cache, start
    sees = torch.arange(cache.key.shape[3], device=model.device) <= position[:, None]
    mask = torch.zeros_like(sees, dtype=model.dtype).masked_fill(~sees, -torch.inf)
    return rotation, mask, StaticKVCache(cache.key, cache.value, position, layer_forward), 0


def _pack(*wholes: nn.Module) -> None:
    """As captured passes have their layers (`real.decode.engine`)."""
    for layer in (module for whole in wholes for module in whole.modules()):
        if isinstance(layer, DecoderLayer) and not layer.fused:
            layer.fuse_projections()


def _even(rows: int) -> int:
    """A multiple of 8: kernels copy masks of other widths."""
    return -(-rows // 8) * 8


def _filled(
    model: Decoder, batch: int, rows: int, random: torch.Generator, layers: int | None = None
) -> KVCache:
    cache = model.cache(len(model.layers) if layers is None else layers, batch, rows)
    for part in (cache.key, cache.value):
        part.normal_(generator=random)
    return cache


def _sizes(name: str, values, least: int) -> list[int]:
    found = sorted(set(values))
    if not found or found[0] < least:
        raise ValueError(f"{name} are {list(values)}, expected sizes of at least {least}")
    return found


def _drafter_shapes(text: str, shape: ModelShape) -> list[ModelShape]:
    if text.partition(":")[0] == "prompt_lookup":
        raise ValueError(
            "drafter 'prompt_lookup' has no pass to time; expected early_exit, model:SHAPE, eagle or medusa"
        )
    return drafter_shapes(text, shape)


def _short(error: BaseException | None) -> bool:
    """Whether memory ran out: a capture that lacks it may end in another error, raised while the first was handled."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False

"""The fast and strict engines: passes padded to a few widths, captured once and replayed.

On CUDA a capture is a CUDA graph. On a CPU a tape of operations keeps the same rules: Python
values are constants, outputs keep their memory, and a value read by the host is an error. So CPU
tests cover the GPU.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from real.model.decoder import Decoder, DecoderLayer, KVCache, LayerKV, StaticKVCache
from real.model.passes import Body, EagerPasses, ForwardContext, Input, Span, depths

Replay = Callable[[], tuple[Tensor, ...]]
"""Replays the capture on the current inputs; returns the same output tensors each time,
overwritten."""
HOST_READS = {
    torch.ops.aten.item.default,
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.resolve_conj.default,
}
"""Operations that item(), float(), tolist() and numpy() call; the host waits for them."""
WARM = 3
"""Runs before a capture on CUDA: libraries allocate workspaces, kernels are compiled."""


class CaptureError(RuntimeError):
    """A captured function broke a rule of captures."""


def capture(function: Callable[[], tuple[Tensor, ...]], device: torch.device, pool=None) -> Replay:
    """Runs `function`, then records it; every run must use the same tensors, and nothing on the
    host.

    `pool` is the memory pool of other graphs (`torch.cuda.graph_pool_handle`); of graphs that
    share one, only the last replayed has valid outputs. CaptureError, on a CPU, where the host
    reads a value.
    """
    if device.type != "cuda":
        return _Tape(function).replay
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            function()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        out = function()

    def replay(inputs=function) -> tuple[Tensor, ...]:
        # a graph holds addresses: without its function the inputs would be freed under it
        graph.replay()
        return out

    return replay


class _Tape(TorchDispatchMode):
    """The operations of one run, for replay.

    An operation is kept with the numbers of the earlier results that it takes, and of its results.
    """

    def __init__(self, function):
        super().__init__()
        self.done: list[tuple] = []
        self.number: dict[int, int] = {}  # of a result; the tape holds it: no two have one id
        with self:
            self.out = function()
        self.results = [(out, self._earlier(out)) for out in self.out]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in HOST_READS:
            raise CaptureError("a captured pass read a number on the host; keep it on the device")
        if func is torch.ops.aten.lift_fresh.default:
            raise CaptureError(
                "a captured pass made a tensor of Python numbers; pass it as an input"
            )
        kwargs = kwargs or {}
        given = [(i, self._earlier(x)) for i, x in enumerate(args)]
        named = [(name, self._earlier(x)) for name, x in kwargs.items()]
        made = func(*args, **kwargs)
        several = isinstance(made, (tuple, list))
        numbers = [
            self.number.setdefault(id(one), len(self.number)) if isinstance(one, Tensor) else None
            for one in (made if several else [made])
        ]
        earlier = [[(key, held) for key, held in of if held is not None] for of in (given, named)]
        self.done.append((func, args, kwargs, *earlier, made, several, numbers))
        return made

    def _earlier(self, x):
        """The number of an earlier result; a list of these for a list, None where there is none."""
        if isinstance(x, (list, tuple)):
            numbers = [self._earlier(each) for each in x]
            return None if all(number is None for number in numbers) else numbers
        return self.number.get(id(x))

    def replay(self) -> tuple[Tensor, ...]:
        now: list[Tensor] = [torch.empty(0)] * len(self.number)

        def current(x, earlier):
            if earlier is None:
                return x
            if isinstance(earlier, int):
                return now[earlier]
            return [current(*pair) for pair in zip(x, earlier)]

        for func, args, kwargs, given, named, _, several, numbers in self.done:
            filled = list(args)
            for i, earlier in given:
                filled[i] = current(args[i], earlier)
            if named:
                kwargs = kwargs | {name: current(kwargs[name], held) for name, held in named}
            made = func(*filled, **kwargs)
            for number, new in zip(numbers, made if several else [made]):
                if number is not None:
                    now[number] = new
        for out, earlier in self.results:
            out.copy_(current(out, earlier))
        return self.out


def _layer_rows(
    layer: DecoderLayer,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    mask: Tensor,
    key: Tensor,
    value: Tensor,
    row: Tensor,
) -> Tensor:
    # without the layer's number, for which every layer would be compiled anew
    return layer.mlp(layer.attend(x, (cos, sin), mask, LayerKV(key, value, row)))


@contextmanager
def compiled_layers(**options) -> Iterator[Callable[..., Tensor]]:
    """Yields a compiled `layer_forward` for the `StaticKVCache` of passes to be captured.

    Layers of one shape share their kernels. `options` go to torch.compile (backend, mode). Only
    passes over such a cache run compiled layers, and only within the context.
    """
    compiled: Callable[..., Tensor] = torch.compile(_layer_rows, fullgraph=True, **options)

    def layer_forward(layer, x, rotation, mask, cache, index):
        return compiled(layer, x, *rotation, mask, *cache.layer(index), cache.row)

    with torch._dynamo.config.patch(recompile_limit=64, accumulated_recompile_limit=512):
        yield layer_forward


class StaticPass:
    """A body at one width and one KV window; a single int64 tensor holds all that differs between
    its calls.

    | part of `numbers` | length | meaning |
    | --- | --- | --- |
    | start, base, last | 3 | as in `Span`, and the last row that is not padding |
    | tokens | width each | of each input that is tokens |
    | depth | width | of each row of a tree |
    | sees | width x tree_rows | whether a row attends to each of the tree's first `tree_rows` \
rows |
    """

    replay: Replay | None = None

    def __init__(
        self,
        decoder: Decoder,
        body: Body,
        shapes: Sequence[tuple | None],
        width: int,
        window: int,
        tree_rows: int,
        cache: KVCache,
    ):
        self.decoder, self.body, self.shapes = decoder, body, shapes
        self.width, self.window, self.tree_rows = width, window, tree_rows
        self.cache, self.keys = cache, cache.key
        self.device = device = decoder.device
        self.inputs = [
            None if shape is None else torch.zeros(width, *shape[0], dtype=shape[1], device=device)
            for shape in shapes
        ]
        size = 3 + width * (self.inputs.count(None) + bool(tree_rows) + tree_rows)
        self.numbers = torch.zeros(size, dtype=torch.int64, device=device)
        if tree_rows:  # each row must see something: a softmax over nothing is NaN
            self.numbers[size - width * tree_rows :: tree_rows] = 1
        self.slot = torch.arange(width, device=device)
        self.column = torch.arange(window, device=device)

    def set(self, inputs: Sequence[Input], span: Span) -> None:
        """Copies the inputs of the next pass, and the places of its rows, into the fixed
        tensors."""
        numbers = [span.start, span.base, span.rows - 1]
        padding = [0] * (self.width - span.rows)
        for static, x in zip(self.inputs, inputs):
            if static is None:
                numbers += [*x, *padding]
            else:
                assert isinstance(x, Tensor)  # an input is always of one kind
                static[: span.rows].copy_(x)
        if span.parent is not None:
            numbers += [*depths(list(span.parent))[-span.rows :], *padding]
            ancestors: list[set[int]] = []
            for row, parent in enumerate(span.parent):
                ancestors.append({row} | (ancestors[parent] if parent >= 0 else set()))
            visible = ancestors[-span.rows :] + [{0}] * len(padding)
            numbers += [int(row in sees) for sees in visible for row in range(self.tree_rows)]
        cuda = self.device.type == "cuda"
        self.numbers.copy_(torch.tensor(numbers, pin_memory=cuda), non_blocking=cuda)

    def function(self, layer_forward: Callable | None = None) -> tuple[Tensor, ...]:
        """The pass on the fixed inputs, its layers run by `layer_forward` where given."""
        numbers, width, tree_rows = self.numbers, self.width, self.tree_rows
        start, base, last = numbers[0], numbers[1], numbers[2:3]
        inputs, offset = [], 3
        for static in self.inputs:
            inputs.append(numbers[offset : offset + width] if static is None else static)
            offset += width * (static is None)
        row = start + self.slot
        if tree_rows:
            position = base + numbers[offset : offset + width]
            tree_row = self.column - base
            table = numbers[offset + width :].view(width, tree_rows)
            visible = table.index_select(1, tree_row.clamp(0, tree_rows - 1)) > 0
            sees = (tree_row < 0) | (visible & (tree_row < tree_rows))
        else:
            position, sees = row, self.column <= row[:, None]
        decoder = self.decoder
        mask = torch.zeros_like(sees, dtype=decoder.dtype).masked_fill(~sees, -torch.inf)
        window = StaticKVCache(
            self.cache.key[:, :, :, : self.window],
            self.cache.value[:, :, :, : self.window],
            row,
            layer_forward,
        )
        context = ForwardContext(decoder.rotation(position), mask, window, 0, last)
        return self.body(*inputs, context)


class CapturedPasses(EagerPasses):
    """Runs passes of at most `max(widths)` rows by replaying a capture; wider ones (prefills) run
    eagerly.

    A pass attends over a KV window rounded up to a power of two. Padding is masked, and written
    after the valid rows. Results are copies. A drafter and its target share one object, with a
    `name` for each body. ValueError for a sequence beyond `capacity`.
    """

    def __init__(
        self,
        widths: Collection[int],  # a pass is padded to the next of these numbers of rows
        capacity: int,  # rows of each KV cache, which never moves
        # compile the layers first: True, False or options of torch.compile; None: on CUDA only
        compiled: dict | bool | None = None,
        smallest: int = 256,  # least KV window; windows are the next powers of two
    ):
        self.widths = tuple(sorted(set(widths)))
        self.capacity, self.compiled, self.smallest = capacity, compiled, smallest
        self.caches: dict[str, KVCache] = {}
        self.captured: dict[tuple, StaticPass] = {}
        self.pool: Any = None  # torch exports no type of its handles

    @property
    def name(self) -> str:
        """The engine: strict where all passes have one width and one KV window, else fast."""
        return "strict" if len(self.widths) == 1 and self.smallest >= self.capacity else "fast"

    def cache(self, name: str, decoder: Decoder, layers: int, rows: int) -> KVCache:
        """The KV cache of that owner, one for all sequences."""
        if name not in self.caches:
            try:
                self.caches[name] = decoder.cache(layers, capacity=self.capacity)
            except (MemoryError, RuntimeError) as error:  # torch raises either, by device
                raise ValueError(
                    f"caches of {self.capacity} rows do not fit {decoder.device}; "
                    "use shorter sequences, or the eager engine"
                ) from error
        return self.caches[name]

    @torch.inference_mode()
    def run(
        self,
        name: str,
        decoder: Decoder,
        body: Body,
        inputs: Sequence[Input],
        span: Span,
        cache: KVCache,
    ) -> tuple[Tensor, ...]:
        """Runs a captured pass where the rows fit one, else `EagerPasses.run`."""
        width = self._width(span)
        if width is None or span.start + width > self.capacity:
            self._check(span.start + span.rows)
            return super().run(name, decoder, body, inputs, span, cache)
        window = next(window for window in self._windows() if window >= span.start + width)
        key = name, width, window, span.parent is None
        static = self.captured.get(key)
        # a drafter that writes to the target's cache may have made it grow
        if static is None or static.keys is not cache.key:
            tree_rows = 0 if span.parent is None else self.widths[-1]
            shapes = [
                (tuple(x.shape[1:]), x.dtype) if isinstance(x, Tensor) else None for x in inputs
            ]
            static = StaticPass(decoder, body, shapes, width, window, tree_rows, cache)
            self.captured[key] = static
        static.set(inputs, span)
        return tuple(out[: span.rows].clone() for out in self._replayed(static))

    @torch.inference_mode()
    def warm(self) -> None:
        """Captures every body seen so far at all widths and KV windows.

        For use between two sequences: it overwrites rows of the caches.
        """
        for (name, *_, is_chain), seen in list(self.captured.items()):
            for width in self.widths:
                for window in self._windows():
                    key = name, width, window, is_chain
                    if window >= width and key not in self.captured:
                        static = StaticPass(
                            seen.decoder, seen.body, seen.shapes, width, window, seen.tree_rows,
                            seen.cache,
                        )  # fmt: skip
                        self.captured[key] = static
                        self._replayed(static)

    def _windows(self) -> list[int]:
        windows = [min(self.smallest, self.capacity)]
        while windows[-1] < self.capacity:
            windows.append(min(2 * windows[-1], self.capacity))
        return windows

    def _replayed(self, static: StaticPass) -> tuple[Tensor, ...]:
        if static.replay is None:
            cuda = static.device.type == "cuda"
            if cuda and self.pool is None:
                self.pool = torch.cuda.graph_pool_handle()
            compiled = cuda if self.compiled is None else self.compiled
            options = compiled if isinstance(compiled, dict) else {}
            with compiled_layers(**options) if compiled else nullcontext() as layer_forward:
                static.replay = capture(
                    lambda: static.function(layer_forward), static.device, self.pool
                )
        return static.replay()

    def _width(self, span: Span) -> int | None:
        rows = span.rows if span.parent is None else max(span.rows, len(span.parent))
        if rows > self.widths[-1]:
            return None
        return next(width for width in self.widths if width >= span.rows)

    def _check(self, rows: int) -> None:
        if rows > self.capacity:
            raise ValueError(
                f"a sequence of {rows} rows is too long for caches of {self.capacity}; "
                "give the engine a larger capacity"
            )

"""Capture of a function of fixed tensors, replayed without Python.

On CUDA it is a CUDA graph. On a CPU a tape of operations keeps the same rules: Python values are
constants, outputs keep their memory, and a value read by the host is an error. So CPU tests
cover the GPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from real.model.kv_cache import LayerKV
from real.model.layer import DecoderLayer

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

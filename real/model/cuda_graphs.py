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
    """The operations of one run, for replay."""

    def __init__(self, function):
        super().__init__()
        self.done: list[tuple] = []
        with self:
            self.out = function()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in HOST_READS:
            raise CaptureError("a captured pass read a number on the host; keep it on the device")
        if func is torch.ops.aten.lift_fresh.default:
            raise CaptureError(
                "a captured pass made a tensor of Python numbers; pass it as an input"
            )
        made = func(*args, **(kwargs or {}))
        self.done.append((func, args, kwargs or {}, made))
        return made

    def replay(self) -> tuple[Tensor, ...]:
        now: dict[int, Tensor] = {}

        def current(x):
            if isinstance(x, (list, tuple)):  # torch's own tree_map takes longer than the operation
                return [current(each) for each in x]
            return now.get(id(x), x)  # the tape holds all that it names: no two have one id

        for func, args, kwargs, first in self.done:
            made = func(*current(args), **{name: current(x) for name, x in kwargs.items()})
            pairs = zip(first, made) if isinstance(first, (tuple, list)) else [(first, made)]
            now.update((id(old), new) for old, new in pairs if isinstance(old, Tensor))
        for out in self.out:
            out.copy_(current(out))
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

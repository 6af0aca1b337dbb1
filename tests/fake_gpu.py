"""A fake GPU: "cuda" tensors live on the CPU, and calls that a GPU would reject raise Misplaced."""

from collections import Counter
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

Tensor = torch.Tensor
READS = {
    Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__,
    Tensor.__index__, torch.equal, torch.allclose, torch.nonzero, Tensor.nonzero, Tensor.equal,
    torch.masked_select, Tensor.masked_select, torch.unique, Tensor.unique,
    Tensor.__format__, Tensor.__repr__,
}  # fmt: skip
"""Functions that make the host wait for a value."""
INDEXED = {Tensor.__getitem__, Tensor.__setitem__}
METADATA = {
    "__set__", "set_", "__deepcopy__", "requires_grad_", "detach", "backward", "__len__", "size",
    "dim", "numel", "stride", "_has_compatible_shallow_copy_type", "_parse_to", "device",
}  # fmt: skip
"""Functions that read or set metadata, and compute nothing."""
SAME_DEVICE = {"cat", "stack", "linear", "matmul", "index_select", "gather", "embedding"}
"""Functions that reject even a scalar tensor of the host."""
NUMPY = {Tensor.numpy, Tensor.__array__}
DEVICE_QUERIES = {
    Tensor.device.__get__: lambda on: torch.device("cuda", 0) if on else torch.device("cpu"),
    Tensor.is_cuda.__get__: bool,
}


class Misplaced(RuntimeError):
    """A call that a GPU would reject."""


class FakeGpu(TorchFunctionMode):
    """Tracks storages created on "cuda"; a call takes tensors of one device only.

    | counter | counts |
    | --- | --- |
    | reads | reads by the host of a value on the GPU |
    | copies | copies from the host to the GPU |
    | calls | functions of tensors on the GPU |
    """

    def __init__(self):
        super().__init__()
        self.held, self.most, self.capturing, self.reads, self.copies, self.calls = (
            {},
            4096,
            False,
            Counter(),
            Counter(),
            Counter(),
        )

    def on(self, x) -> bool:
        return _key(x) in self.held

    def put(self, result):
        for x in _leaves(result):
            if isinstance(x, Tensor):
                self.held.setdefault(_key(x), _weak(x))  # keeps the address in use
        if len(self.held) > self.most:
            self.held = {key: weak for key, weak in self.held.items() if not weak.expired()}
            self.most = 2 * len(self.held) + 4096
        return result

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", str(func))
        if func in DEVICE_QUERIES:
            return DEVICE_QUERIES[func](self.on(args[0]))
        tensors = [x for x in _leaves((args, kwargs)) if isinstance(x, Tensor)]
        here, there = [], []
        for x in tensors:
            (there if self.on(x) else here).append(x)
        if name == "__get__":
            result = func(*args, **kwargs)
            return self.put(result) if there and isinstance(result, Tensor) else result
        if name in METADATA:
            result = func(*args, **kwargs)
            return self.put(result) if there and isinstance(result, Tensor) else result
        if there and func in NUMPY:
            raise Misplaced(f"{name}() of a tensor on the GPU; copy it to the host first")
        if there and func in READS:
            self._read(name)
            result = func(*args, **kwargs)
            return self.put(result) if isinstance(result, (Tensor, tuple)) else result
        wanted, args, kwargs = _device(name, args, kwargs)
        kwargs.pop("pin_memory", None)
        if self.capturing and not there and here and wanted == "cuda":
            raise Misplaced(f"{name}: a copy from the host within a capture")
        if name in ("to", "cpu", "cuda", "type_as") and tensors:
            return self._moved(func, name, wanted, tensors[0], args, kwargs)
        if name == "copy_" or (
            func is Tensor.__setitem__ and there and here and self.on(args[0]) and _plain(args[1])
        ):
            if there and here:
                (self._copied if self.on(args[0]) else self._read)(name)
            return func(*args, **kwargs)
        if func in INDEXED and self.on(args[0]):
            index = [x for x in _leaves(args[1]) if isinstance(x, Tensor)]
            if any(x.dtype == torch.bool for x in index) and func is Tensor.__getitem__:
                self._read("masked index")
            for x in index:
                if not self.on(x) and x.dim():
                    self._copied(f"{name} with an index of the host")
            rest = [x for x in here if x.dim() and not any(x is i for i in index)]
        elif func in INDEXED and there:
            raise Misplaced(f"{name}: a tensor of the host indexed by, or set to, one on the GPU")
        else:
            rest = [x for x in here if x.dim()]
            if name in SAME_DEVICE or name.startswith("_fused"):
                rest = here
        if there and rest:
            raise Misplaced(
                f"{name}: tensors of shapes {[list(x.shape) for x in tensors]} "
                "on both the GPU and the host"
            )
        if there and here:
            self._copied(f"{name} with a number of the host")
        if wanted == "cuda" and name in ("tensor", "as_tensor", "asarray"):
            self._copied(name)
        generator = kwargs.get("generator")
        if generator is not None and getattr(generator, "on_gpu", False) != (
            wanted == "cuda" or bool(there)
        ):
            raise Misplaced(f"{name}: a generator of the other device")
        result = func(*args, **kwargs)
        if there or wanted == "cuda":
            if there:
                self.calls[name] += 1
            self.put(result)
        return result

    def _moved(self, func, name, wanted, x, args, kwargs):
        if wanted is None and name == "to" and len([t for t in args if isinstance(t, Tensor)]) > 1:
            wanted = "cuda" if self.on(args[1]) else "cpu"
        if name == "cpu":
            wanted = "cpu"
        was = self.on(x)
        result = x if name in ("cpu", "cuda") else func(*args, **kwargs)
        goes = {"cuda": True, "cpu": False, None: was}[wanted]
        if goes == was:
            return self.put(result) if was else result
        (self._copied if goes else self._read)(name)
        result = (
            result.clone()
            if result.untyped_storage()._cdata == x.untyped_storage()._cdata
            else result
        )
        return self.put(result) if goes else result

    def _read(self, name):
        if self.capturing:
            raise Misplaced(f"{name}: the host reads within a capture")
        self.reads[name] += 1

    def _copied(self, name):
        if self.capturing:
            raise Misplaced(f"{name}: a copy from the host within a capture")
        self.copies[name] += 1


def _leaves(value) -> list:
    """What arguments or results hold; torch's own function takes longer than most calls."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return [value]
    found = []
    for x in value:
        if isinstance(x, (list, tuple, dict)):
            found += _leaves(x)
        else:
            found.append(x)
    return found


def _key(x) -> int:
    with torch._C.DisableTorchFunction():
        return x.untyped_storage()._cdata


def _weak(x) -> StorageWeakRef:
    with torch._C.DisableTorchFunction():
        return StorageWeakRef(x.untyped_storage())


def _plain(index) -> bool:
    return not any(isinstance(x, Tensor) for x in _leaves(index))


def _kind(x) -> str | None:
    if isinstance(x, torch.device):
        return x.type
    return (
        x.partition(":")[0]
        if isinstance(x, str) and x.partition(":")[0] in ("cuda", "cpu")
        else None
    )


def _device(name, args, kwargs):
    """(device argument of a call or None, its arguments with the CPU in its place)."""
    device = None

    def to_cpu(x):
        nonlocal device
        if isinstance(x, torch.device) or (name == "to" and isinstance(x, str)):
            kind = _kind(x)
            device = kind or device
            return torch.device("cpu") if kind else x
        return x

    if any(isinstance(x, (torch.device, str)) for x in _leaves(args)):
        args = tree_map(to_cpu, args)
    if "device" in kwargs and kwargs["device"] is not None:
        device = _kind(kwargs["device"]) or device
        kwargs = kwargs | {"device": "cpu"}
    return device, args, kwargs


class Generator(torch.Generator):
    def __new__(cls, device="cpu"):
        generator = super().__new__(cls)
        generator.on_gpu = _kind(device) == "cuda"
        return generator

    def __init__(self, device="cpu"):
        pass


class Event:
    def __init__(self, enable_timing=False): ...

    def record(self, *_): ...

    def synchronize(self): ...

    def elapsed_time(self, other):
        return 1.0


class Stream:
    def __init__(self, *_): ...

    def wait_stream(self, *_): ...


@contextmanager
def fake_gpu():
    """A FakeGpu mode with torch.cuda patched; captures reject what CUDA graphs reject."""
    import real.measure.device_limits
    import real.measure.grid_timer
    import real.model.captured_passes
    import real.model.cuda_graphs

    mode, plain, waits = FakeGpu(), real.model.cuda_graphs._Tape, Counter()

    def captured(function, device, pool=None):
        if device.type != "cuda":
            return plain(function).replay
        for _ in range(real.model.cuda_graphs.WARM):
            function()
        mode.capturing = True
        try:
            tape = plain(function)
        finally:
            mode.capturing = False
        mode.put(tape.out)

        def replay():
            with torch._C.DisableTorchFunction():
                return tape.replay()

        return replay

    autocast = torch.autocast
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "is_available": lambda: True,
            "is_current_stream_capturing": lambda: mode.capturing,
            "device_count": lambda: 1,
            "get_device_name": lambda *_: "fake GPU",
            "current_device": lambda: 0,
            "synchronize": lambda *_: waits.update(["synchronize"]),
            "Stream": Stream,
            "Event": Event,
            "current_stream": Stream,
            "stream": lambda *_: nullcontext(),
            "device": lambda *_: nullcontext(),
            "graph_pool_handle": lambda: None,
            "mem_get_info": lambda *_: (100 << 30, 139 << 30),
            "empty_cache": lambda: None,
            "_lazy_init": lambda: None,
            "manual_seed_all": lambda *_: None,
            "max_memory_allocated": lambda *_: 0,
            "reset_peak_memory_stats": lambda *_: None,
        }.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch, "Generator", Generator)
        patch.setattr(torch, "autocast", lambda kind, **how: autocast("cpu", **how))
        patch.setattr(torch.random, "fork_rng", lambda *_, **__: nullcontext())
        patch.setitem(real.measure.device_limits.COPY_BYTES, "cuda", 1 << 12)
        patch.setitem(real.measure.device_limits.MATRIX_SIDE, "cuda", 8)
        for module in (real.model.captured_passes, real.measure.grid_timer):
            patch.setattr(module, "capture", captured, raising=False)
            patch.setattr(module, "compiled_layers", lambda **_: nullcontext(), raising=False)
        mode.waits = waits
        with mode:
            yield mode

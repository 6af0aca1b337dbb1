"""Compilation of layers for training, where it works."""

from collections.abc import Callable, Iterable

from torch import Tensor, nn


def compile_layers(
    layers: Iterable[nn.Module], trial: Callable[[], Tensor], backend: str = "inductor"
) -> str:
    """Compiles each layer in place and tries `trial().backward()`; "" or the reason why not.

    After a failure the layers are uncompiled again. Layers of one kind share one compiled graph:
    seconds, where a whole model takes minutes.
    """
    layers = list(layers)
    for layer in layers:
        layer.compile(backend=backend)
    try:
        trial().backward()
        return ""
    except Exception as error:  # compilers raise anything, and training goes on without them
        for layer in layers:
            layer._compiled_call_impl = None
        return f"not compiled: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        for layer in layers:
            layer.zero_grad(set_to_none=True)

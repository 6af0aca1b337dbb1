"""KV caches: one that grows with its sequence, and a window of fixed tensors for captured
passes."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from real.model.config import DecoderConfig


class KVCache:
    """Keys and values of some layers, `[layers, batch, kv_heads, capacity, head_dim]`, grown by
    doubling.

    The number of valid rows belongs to the owner, who passes `start` with every pass.
    """

    def __init__(
        self,
        config: DecoderConfig,
        layers: int,
        batch: int = 1,
        capacity: int = 256,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        size = (layers, batch, config.kv_heads, capacity, config.head_dim)
        self.key = torch.zeros(size, dtype=dtype, device=device)
        self.value = torch.zeros_like(self.key)

    def reserve(self, rows: int) -> None:
        """Grows to at least `rows` rows; the rows already stored are preserved."""
        capacity = self.key.shape[3]
        if rows <= capacity:
            return
        extra = max(rows, 2 * capacity) - capacity
        self.key, self.value = (F.pad(t, (0, 0, 0, extra)) for t in (self.key, self.value))

    def move(self, source: Tensor, start: int) -> None:
        """Copies the rows `source` to `start`, `start + 1`, ...: an accepted tree path becomes
        contiguous."""
        stop = start + len(source)
        for t in (self.key, self.value):
            t[:, :, :, start:stop] = t[:, :, :, source]

    def put(self, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes a layer's rows `[batch, kv_heads, n, head_dim]` at `start`; returns all rows up to
        the last written."""
        stop = start + key.shape[2]
        self.key[layer, :, :, start:stop] = key
        self.value[layer, :, :, start:stop] = value
        return self.key[layer, :, :, :stop], self.value[layer, :, :, :stop]


class StaticKVCache:
    """A window of fixed tensors over a cache's first rows, with the rows that a pass writes.

    | field | meaning |
    | --- | --- |
    | key, value | the window; attention covers all of it, and a mask says which rows are valid |
    | row `[n]` | int64 tensor: the cache rows that the pass writes |
    | layer_forward | runs the layers of the pass in place of `DecoderLayer.forward`; None: eager |

    Nothing in it depends on the sequence's length, as a captured pass requires
    (`real.model.captured_passes`).
    """

    def __init__(
        self, key: Tensor, value: Tensor, row: Tensor, layer_forward: Callable | None = None
    ):
        self.key, self.value, self.row = key, value, row
        self.layer_forward = layer_forward

    def reserve(self, rows: int) -> None:
        """Does nothing: the owner has reserved the rows."""

    def put(self, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes a layer's rows to `row`; returns the whole window."""
        window = self.layer(layer)
        for rows, new in zip(window, (key, value)):
            rows[:, :, self.row] = new
        return window

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, `[batch, kv_heads, rows, head_dim]` each."""
        return self.key[layer], self.value[layer]


class LayerKV(StaticKVCache):
    """A `StaticKVCache` of a single layer with separate tensors; a compiler would take a view for
    the whole cache."""

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Its keys and values, whatever the layer number."""
        return self.key, self.value

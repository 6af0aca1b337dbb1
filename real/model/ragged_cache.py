"""KV cache of sequences of different lengths that grow by one row a pass."""

import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.model.kv_cache import KVCache


class RaggedKVCache:
    """A `KVCache` to the layers: one sequence a slot, each with its own number of cached rows.

    | field | meaning |
    | --- | --- |
    | key, value | `[layers, slots, kv_heads, capacity, head_dim]` |
    | length | cached rows of each sequence; the first `len(length)` slots are in use |
    """

    def __init__(self, decoder: Decoder, slots: int, capacity: int):
        whole = decoder.cache(batch=slots, capacity=capacity)
        self.key, self.value = whole.key, whole.value
        self.length: list[int] = []

    def admit(self, prefilled: KVCache, lengths: list[int]) -> None:
        """Gives each row of a prefilled batch the next free slot; it has `lengths` valid rows."""
        first = len(self.length)
        slots, longest = slice(first, first + len(lengths)), max(lengths)
        for own, new in ((self.key, prefilled.key), (self.value, prefilled.value)):
            own[:, slots, :, :longest] = new[:, :, :, :longest]
        self.length += lengths

    def drop(self, slot: int) -> None:
        """Frees a slot; the sequence of the last used slot moves into it."""
        last = len(self.length) - 1
        if slot < last:
            for t in (self.key, self.value):
                t[:, slot, :, : self.length[last]] = t[:, last, :, : self.length[last]]
        self.length[slot] = self.length[last]
        self.length.pop()

    def step(self, decoder: Decoder) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Rotation and mask of the next row of every sequence, which `put` then writes."""
        device = self.key.device
        self.row = torch.tensor(self.length, device=device)
        self.slot = torch.arange(len(self.length), device=device)
        self.stop = max(self.length) + 1
        cosine, sine = (t[:, None, None] for t in decoder.rotation(self.row))
        visible = torch.arange(self.stop, device=device) <= self.row[:, None]
        self.length = [rows + 1 for rows in self.length]
        return (cosine, sine), visible[:, None, None]

    def reserve(self, rows: int) -> None:
        """Does nothing: a slot has room for its sequence's last row."""

    def put(self, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes one row `[b, kv_heads, 1, head_dim]` of each sequence behind its own; returns the
        rows of all up to the longest."""
        rows = []
        for own, new in ((self.key[layer], key), (self.value[layer], value)):
            own[self.slot, :, self.row] = new[:, :, 0]
            rows.append(own[: len(key), :, : self.stop])
        return rows[0], rows[1]

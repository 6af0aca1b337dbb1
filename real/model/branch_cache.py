"""KV cache of drafts that branch off one sequence at many positions."""

import torch
from torch import Tensor
from torch.nn import functional as F

from real.model.decoder import Decoder
from real.model.kv_cache import KVCache


class BranchCache:
    """A `KVCache` to the layers: m branches, each behind its own prefix of one cached sequence.

    Branch i attends to the first `prefix [m]` rows of the sequence's cache, and of its own rows to
    the ancestors of the newest ones.
    """

    def __init__(self, sequence: KVCache, rows: int, prefix: Tensor):
        self.sequence, self.rows, self.prefix = sequence, rows, prefix
        self.layers: dict[int, list[Tensor]] = {}
        self.ancestors = torch.zeros(len(prefix), 1, 0, dtype=torch.bool, device=prefix.device)
        self.depth = -1
        self.visible = (torch.arange(rows, device=prefix.device) < prefix[:, None])[:, None]

    def step(self, parent: Tensor, decoder: Decoder) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Rotation and mask of the next rows, children of rows `parent [m, n]` of the last step.

        All parents of the first step are 0.
        """
        (m, n), held = parent.shape, self.ancestors.shape[2]
        above = self.ancestors.gather(1, parent[..., None].expand(m, n, held))
        new = torch.eye(n, dtype=torch.bool, device=parent.device).expand(m, n, n)
        self.ancestors = torch.cat((above, new), 2)
        self.depth += 1
        position = (self.prefix + self.depth)[:, None].expand(m, n).flatten()
        cosine, sine = (t.view(m, 1, n, -1) for t in decoder.rotation(position))
        mask = torch.cat((self.visible.expand(m, n, -1), self.ancestors), 2)[:, None]
        return (cosine, sine), mask

    def reserve(self, rows: int) -> None:
        """Does nothing: `put` grows the cache."""

    def put(self, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Appends rows `[m, kv_heads, n, head_dim]` of a layer; returns all rows of that layer."""
        stop, new = self.rows + self.ancestors.shape[2], key.shape[2]
        if layer not in self.layers:  # the visible rows are copied to every branch, once
            copies = (
                t[layer, :, :, : self.rows].expand(len(key), -1, -1, -1)
                for t in (self.sequence.key, self.sequence.value)
            )
            self.layers[layer] = [F.pad(t, (0, 0, 0, stop - self.rows + 15 * new)) for t in copies]
        rows = self.layers[layer]
        if stop > rows[0].shape[2]:
            rows[:] = [F.pad(t, (0, 0, 0, stop)) for t in rows]
        for held, added in zip(rows, (key, value)):
            held[:, :, stop - new : stop] = added
        return rows[0][:, :, :stop], rows[1][:, :, :stop]

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
        """Appends rows `[m, kv_heads, n, head_dim]` of a layer; returns the branches' own rows."""
        held, new = self.ancestors.shape[2], key.shape[2]
        if layer not in self.layers:
            self.layers[layer] = [F.pad(t, (0, 0, 0, 15 * new)) for t in (key, value)]
        rows = self.layers[layer]
        if held > rows[0].shape[2]:
            rows[:] = [F.pad(t, (0, 0, 0, held)) for t in rows]
        for t, added in zip(rows, (key, value)):
            t[:, :, held - new : held] = added
        return rows[0][:, :, :held], rows[1][:, :, :held]

    def attention(self, layer: int, q: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Attention of `q [m, heads, n, head_dim]` to the sequence's rows and to branches' own.

        The sequence's rows are read in one product for all branches, never copied to each.
        """
        (m, heads, n, width), kv_heads = q.shape, key.shape[1]
        shared_key, shared_value = (
            t[layer, 0, :, : self.rows] for t in (self.sequence.key, self.sequence.value)
        )
        grouped = q.reshape(m, kv_heads, -1, width) * width**-0.5
        together = grouped.transpose(0, 1).reshape(kv_heads, -1, width)
        of_sequence = (together @ shared_key.transpose(1, 2)).view(kv_heads, m, -1, self.rows)
        of_branch = (grouped @ key.transpose(2, 3)).transpose(0, 1)
        scores = torch.cat((of_sequence, of_branch), -1).unflatten(2, (-1, n))
        scores = scores.masked_fill_(~mask.transpose(0, 1)[:, :, None], -torch.inf)
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        weight = scores.softmax(-1, dtype=wide).to(q.dtype).flatten(2, 3)
        of_sequence, of_branch = weight.split((self.rows, key.shape[2]), -1)
        mixed = (of_sequence.flatten(1, 2) @ shared_value).view(kv_heads, m, -1, width)
        mixed = mixed.transpose(0, 1) + of_branch.transpose(0, 1) @ value
        return mixed.reshape(m, heads, n, width)

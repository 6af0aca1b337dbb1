"""Cross-attention of a drafter over the keys and values that the target has cached."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.model.config import DecoderConfig
from real.model.layer import RMSNorm
from real.model.rotary import rotate


class TargetCrossAttention(nn.Module):
    """x + output(attention of query(norm(x)) over the target's keys and values)."""

    def __init__(self, width: int, target: DecoderConfig):
        super().__init__()
        self.config = target
        self.norm = RMSNorm(width, target.norm_eps)
        self.query = nn.Linear(width, target.heads * target.head_dim, bias=False)
        self.output = nn.Linear(target.heads * target.head_dim, width, bias=False)
        nn.init.normal_(self.output.weight, std=0.02)

    def forward(
        self, x: Tensor, rotation, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Rows `x [b, n, width]` after attention over m keys `[b, kv_heads, m, head_dim]`.

        Keys of batch 1 are those of all rows, read in one product without a copy for each.
        `mask`, bool `[n, m]` or `[b, 1, n, m]`: the keys that each row attends to; None: all.
        Queries are rotated by the row's own position, as the cached keys are by theirs.
        """
        if not key.shape[2]:
            return x
        q = self.query(self.norm(x)).view(*x.shape[:2], -1, self.config.head_dim).transpose(1, 2)
        q = rotate(q, rotation)
        key, value = key.to(q.dtype), value.to(q.dtype)
        if mask is None:
            return x + self._attend(q, key, value, None)
        mask = mask if mask.dim() == 4 else mask[None, None]
        # a row without keys would be 0 / 0: it attends to the first key, and the result is dropped
        first = torch.arange(key.shape[2], device=mask.device) == 0
        has_keys = mask.any(-1, keepdim=True)
        attended = self._attend(q, key, value, mask | ~has_keys & first)
        return x + attended * has_keys[:, 0].to(x.dtype)

    def _attend(self, q: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        # rows that read the same keys, of one sequence or of one group of heads, become one matrix
        batch, _, rows, _ = q.shape
        together = len(key) == 1 < batch
        grouped = q.unflatten(1, (key.shape[1], -1))  # [b, kv_heads, group, n, head_dim]
        group, inner = grouped.shape[2], (2, 3)
        if together:
            grouped, inner = grouped.transpose(0, 1)[None], (2, 4)
        if mask is not None:
            mask = mask.expand(batch if together else -1, group, rows, -1)
            mask = mask.flatten(0, 2)[None, None] if together else mask.flatten(1, 2)[:, None]
        mixed = F.scaled_dot_product_attention(grouped.flatten(*inner), key, value, attn_mask=mask)
        if together:
            mixed = mixed[0].unflatten(1, (batch, group, rows)).transpose(0, 1)
        else:
            mixed = mixed.unflatten(2, (group, rows))
        return self.output(mixed.flatten(1, 2).transpose(1, 2).flatten(2))


def blockwise_mask(rows: int, block: int) -> Tensor:
    """Bool `[rows, rows]`: row j attends to keys k < block * floor(j / block) (GLIDE §4.1).

    Within a block of 5 the newest visible key is 1, 2, .. 5 rows old, as for the first, second, ..
    fifth token of a draft. ValueError for a block that is no integer of 1 or more.
    """
    if type(block) is not int or block < 1:
        raise ValueError(
            f"block is {block!r}; expected an integer of 1 row or more (the paper has 5)"
        )
    place = torch.arange(rows)
    return place < (place // block * block)[:, None]

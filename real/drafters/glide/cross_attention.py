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
        """Rows `x [b, n, width]` after attention over m keys.

        `mask`, bool `[n, m]` or `[b, 1, n, m]`: the keys that each row attends to; None: all.
        Queries are rotated by the row's own position, as the cached keys are by theirs.
        """
        if not key.shape[2]:
            return x
        q = self.query(self.norm(x)).view(*x.shape[:2], -1, self.config.head_dim).transpose(1, 2)
        q = rotate(q, rotation)
        group = self.config.heads // self.config.kv_heads
        key, value = (t.to(q.dtype).repeat_interleave(group, 1) for t in (key, value))
        if mask is None:
            return x + self._attend(q, key, value, None)
        # a row without keys would be 0 / 0: it attends to the first key, and the result is dropped
        first = torch.arange(len(key[0, 0]), device=mask.device) == 0
        has_keys = mask.any(-1, keepdim=True)
        attended = self._attend(q, key, value, mask | ~has_keys & first)
        return x + attended * (has_keys if has_keys.dim() == 2 else has_keys[:, 0]).to(x.dtype)

    def _attend(self, q: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        attended = F.scaled_dot_product_attention(q, key, value, attn_mask=mask)
        return self.output(attended.transpose(1, 2).flatten(2))


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

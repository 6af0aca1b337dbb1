"""Training-time draft steps: EAGLE's estimates from its own estimates, as a draft makes them.

Steps after the first read an estimate in place of a true feature (HASS, arXiv 2408.15766;
"training-time test" of EAGLE-3, arXiv 2503.01840 §3.2).
"""

from typing import Any

import torch
from torch import Tensor

from real.drafters.eagle.head import EagleHead
from real.model.decoder import Decoder


class UnrolledCache:
    """A `KVCache` to the layers in training: draft steps from every row of a batch, with gradients.

    The row of step s that belongs to row i attends to the true rows 0 .. i, and to its own rows of
    steps 2 .. s: what a draft that starts after row i sees.
    """

    def __init__(self) -> None:
        self.layers: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def put(self, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keeps a step's rows `[batch, kv_heads, n, head_dim]` of a layer, and returns them."""
        self.layers.setdefault(layer, []).append((key, value))
        return key, value

    def attention(
        self, layer: int, q: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attention of `q [batch, heads, n, head_dim]`, the rows of the newest step."""
        (batch, heads, n, width), kv_heads = q.shape, key.shape[1]
        (true_key, true_value), *drafted = self.layers[layer]
        grouped = q.view(batch, kv_heads, -1, n, width) * width**-0.5
        scores = [grouped @ true_key[:, :, None].transpose(-1, -2)]
        later = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
        scores[0] = scores[0].masked_fill(later, -torch.inf)
        scores += [(grouped * k[:, :, None]).sum(-1, keepdim=True) for k, _ in drafted]
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        weight = torch.cat(scores, -1).softmax(-1, dtype=wide).to(q.dtype)
        mixed = weight[..., :n] @ true_value[:, :, None]
        for s, (_, v) in enumerate(drafted):
            mixed = mixed + weight[..., n + s, None] * v[:, :, None]
        return mixed.view(batch, heads, n, width)


def unrolled_estimates(
    head: EagleHead, target: Decoder, feature: Tensor, token: Tensor, steps: int
) -> list[Tensor]:
    """Estimates `[b, n, width]` of `steps` draft steps from every row, along the true tokens.

    Entry s - 1, row i estimates f_{i+s}: the first from the true f_i, later ones from the estimate
    of the step before. `feature [b, n, width]` f_0 .. f_{n-1}, `token [b, n + 1]` t_0 .. t_n. Rows
    i + s > n have no token to read; they read token 0.
    """
    rows = feature.shape[1]
    cache: Any = UnrolledCache()
    read = torch.nn.functional.pad(token[:, head.shift :], (0, steps))
    estimates = []
    for step in range(steps):
        place = torch.arange(step, step + rows, device=feature.device)
        tokens = read[:, step : step + rows]
        feature = head.estimate(target, feature, tokens, target.rotation(place), cache=cache)
        estimates.append(feature)
    return estimates

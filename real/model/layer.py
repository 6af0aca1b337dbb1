"""One decoder layer: RMSNorm, rotary positions, grouped-query attention and SwiGLU."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.model.config import DecoderConfig
from real.model.kv_cache import KVCache, StaticKVCache


def frequencies(config: DecoderConfig) -> Tensor:
    """Rotary frequencies theta^(-2i / head_dim), float64 `[head_dim / 2]`."""
    return config.rope_theta ** (
        -torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    )


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates the pairs (i, i + head_dim / 2) of each head by its position's (cosine, sine)."""
    cos, sin = rotation
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Linear(nn.Linear):
    """nn.Linear without nn.Module's call, which takes as long as a product of few small rows; its
    forward hooks run."""

    def __call__(self, x: Tensor) -> Tensor:
        if self._forward_hooks or self._forward_pre_hooks:
            return cast(Tensor, super().__call__(x))
        weight, bias = self._parameters.values()
        return F.linear(x, cast(Tensor, weight), bias)


class RMSNorm(nn.Module):
    """RMSNorm, x / sqrt(mean(x^2) + eps) * weight, computed in at least float32.

    Called as `Linear` is.
    """

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        if self._forward_hooks or self._forward_pre_hooks:
            return cast(Tensor, super().__call__(x))
        return self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class DecoderLayer(nn.Module):
    """One decoder layer: x + attention(norm(x)), then + SwiGLU(norm(.)).

    `fuse_projections` joins its five input projections into two matrices, so that a pass runs
    fewer products.
    """

    fused = False
    # set by fuse_projections
    qkv: Tensor
    qkv_bias: Tensor | None
    gate_up: Tensor

    def __init__(self, config: DecoderConfig):
        super().__init__()
        s, inner = config, config.heads * config.head_dim
        self.config = config
        self.attention_norm = RMSNorm(s.width, s.norm_eps)
        self.query = Linear(s.width, inner, bias=s.qkv_bias)
        self.key = Linear(s.width, s.kv_heads * s.head_dim, bias=s.qkv_bias)
        self.value = Linear(s.width, s.kv_heads * s.head_dim, bias=s.qkv_bias)
        self.output = Linear(inner, s.width, bias=s.output_bias)
        self.mlp_norm = RMSNorm(s.width, s.norm_eps)
        self.gate = Linear(s.width, s.hidden, bias=False)
        self.up = Linear(s.width, s.hidden, bias=False)
        self.down = Linear(s.hidden, s.width, bias=False)
        if s.qk_norm:
            self.query_norm = RMSNorm(s.head_dim, s.norm_eps)
            self.key_norm = RMSNorm(s.head_dim, s.norm_eps)

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
        cache: KVCache | StaticKVCache | None = None,
        index: int = 0,
        start: int = 0,
    ) -> Tensor:
        """Passes rows `x [batch, n, width]`; with a cache their keys go to rows `start ...` of its
        layer `index`."""
        if isinstance(cache, StaticKVCache) and cache.layer_forward is not None:
            return cache.layer_forward(self, x, rotation, mask, cache, index)
        return self.mlp(self.attend(x, rotation, mask, cache, index, start))

    def attend(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
        cache: KVCache | StaticKVCache | None = None,
        index: int = 0,
        start: int = 0,
    ) -> Tensor:
        """The first half of `forward`: x + attention(norm(x))."""
        y = self.attention_norm(x)
        q, k, v = (part.unflatten(-1, (-1, self.config.head_dim)) for part in self._qkv(y))
        if self.config.qk_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        q, k = rotate(q.transpose(1, 2), rotation), rotate(k.transpose(1, 2), rotation)
        v = v.transpose(1, 2)
        if cache is not None:
            k, v = cache.put(index, start, k, v)
        own = getattr(cache, "attention", None)  # a cache that attends in the layer's place
        if own is not None:
            mixed = own(index, q, k, v, mask)
        else:
            mixed = self._attention(q, k, v, mask, causal=mask is None and cache is None)
        return x + self.output(mixed.transpose(1, 2).flatten(2))

    def mlp(self, x: Tensor) -> Tensor:
        """The second half of `forward`: x + SwiGLU(norm(x))."""
        y = self.mlp_norm(x)
        if self.fused:
            gate, up = F.linear(y, self.gate_up).chunk(2, -1)
        else:
            gate, up = self.gate(y), self.up(y)
        return x + self.down(F.silu(gate) * up)

    @torch.no_grad()
    def fuse_projections(self) -> None:
        """Joins query, key and value into one matrix, and gate and up into another; for inference.

        The parameters remain as views into the joined matrices. The layer must be on its final
        device.
        """
        for name, group in (
            ("qkv", (self.query, self.key, self.value)),
            ("gate_up", (self.gate, self.up)),
        ):
            joined = torch.cat([linear.weight for linear in group])
            self.register_buffer(name, joined, persistent=False)
            sizes = [linear.out_features for linear in group]
            for linear, view in zip(group, joined.split(sizes)):
                linear.weight.data = view
        biases = (self.query.bias, self.key.bias, self.value.bias)
        self.register_buffer(
            "qkv_bias", torch.cat(biases) if self.config.qkv_bias else None, persistent=False
        )
        self.fused = True

    def _qkv(self, y: Tensor) -> tuple[Tensor, ...]:
        if not self.fused:
            return self.query(y), self.key(y), self.value(y)
        sizes = [linear.out_features for linear in (self.query, self.key, self.value)]
        return F.linear(y, self.qkv, self.qkv_bias).split(sizes, -1)

    def _attention(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool
    ) -> Tensor:
        group = self.config.heads // self.config.kv_heads
        if group > 1 and causal:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        elif group > 1:
            # heads that share keys become rows: a long cache is read once and never copied
            grouped = q.unflatten(1, (-1, group)).flatten(2, 3)
            wide = mask if mask is None else mask.repeat(*[1] * (mask.dim() - 2), group, 1)
            mixed = F.scaled_dot_product_attention(grouped, k, v, attn_mask=wide)
            return mixed.unflatten(2, (group, -1)).flatten(1, 2)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)

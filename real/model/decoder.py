"""Our own decoder block: RMSNorm, rotary positions, grouped-query attention and SwiGLU over plain caches.

It computes what transformers computes for Llama, Mistral, Qwen2 and Qwen3 (the parity test holds the logits to 1e-5
in float32), and adds what speculative decoding needs and a framework's model hides: any range of layers, any
attention mask, and caches that are indexed tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder.

    | field | meaning |
    | --- | --- |
    | vocab | tokens |
    | width | size of the residual stream |
    | layers | decoder layers |
    | heads, kv_heads | query heads, and key/value heads that groups of them share |
    | head_dim | size of one head |
    | hidden | inner size of the SwiGLU |
    | rope_theta | base of the rotary frequencies |
    | norm_eps | added to the mean square in RMSNorm |
    | tied | the head is the embedding |
    | qkv_bias | biases on query, key and value (Qwen2) |
    | qk_norm | RMSNorm on each query and key head (Qwen3) |
    """

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tied: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False


class RMSNorm(nn.Module):
    """RMSNorm, x / sqrt(mean(x^2) + eps) * weight, in at least float32 whatever the model's dtype."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class KVCache:
    """Keys and values of some layers, `[layers, batch, kv_heads, capacity, head_dim]`, grown by doubling.

    The cache does not know how many rows are valid: its owner does, and passes `start` with every pass.
    """

    def __init__(
        self,
        config: DecoderConfig,
        layers: int,
        batch: int = 1,
        capacity: int = 256,
        dtype=None,
        device=None,
    ):
        size = (layers, batch, config.kv_heads, capacity, config.head_dim)
        self.key = torch.zeros(size, dtype=dtype, device=device)
        self.value = torch.zeros_like(self.key)

    def reserve(self, rows: int) -> None:
        """Makes room for `rows` rows, keeping what is there."""
        capacity = self.key.shape[3]
        if rows <= capacity:
            return
        extra = max(rows, 2 * capacity) - capacity
        self.key, self.value = (F.pad(t, (0, 0, 0, extra)) for t in (self.key, self.value))

    def move(self, source: Tensor, start: int) -> None:
        """Copies the rows `source` to `start`, `start + 1`, ...: how a kept path of a tree becomes contiguous."""
        stop = start + len(source)
        for t in (self.key, self.value):
            t[:, :, :, start:stop] = t[:, :, :, source]

    def put(self, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the rows `[batch, kv_heads, n, head_dim]` of a layer behind its first `start`; returns all rows up to the last written."""
        stop = start + key.shape[2]
        self.key[layer, :, :, start:stop] = key
        self.value[layer, :, :, start:stop] = value
        return self.key[layer, :, :, :stop], self.value[layer, :, :, :stop]


class StaticKVCache:
    """The first rows of a cache, all of them seen whatever is valid, and the places `row` int64 `[n]` where a pass's rows go.

    A `KVCache` to the layers, but nothing in it depends on where a text stands: what a captured pass needs (see real/model/runner.py).
    `layer_forward`, if given, runs the layers that write here (`real.model.cuda_graphs.compiled_layers`).
    """

    def __init__(
        self, key: Tensor, value: Tensor, row: Tensor, layer_forward: Callable | None = None
    ):
        self.key, self.value, self.row = key, value, row
        self.layer_forward = layer_forward

    def reserve(self, rows: int) -> None:
        """Nothing: its owner has made room."""

    def put(self, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """As `KVCache.put`, to the places of `row`; all rows come back, and the mask tells which count."""
        held = self.layer(layer)
        for rows, new in zip(held, (key, value)):
            rows[:, :, self.row] = new
        return held

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer `[batch, kv_heads, rows, head_dim]`."""
        return self.key[layer], self.value[layer]


class LayerKV(StaticKVCache):
    """A `StaticKVCache` of a single layer, whose key and value are its own: to a compiler a view of the whole would be the whole."""

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """That layer, whatever its number."""
        return self.key, self.value


class DecoderLayer(nn.Module):
    """One decoder layer: x + attention(norm(x)), then + SwiGLU(norm(.)).

    `fuse_projections` makes of its five reading matrices two, so that a pass has fewer products to wait for.
    """

    fused = False

    def __init__(self, config: DecoderConfig):
        super().__init__()
        s, inner = config, config.heads * config.head_dim
        self.config = config
        self.attention_norm = RMSNorm(s.width, s.norm_eps)
        self.query = nn.Linear(s.width, inner, bias=s.qkv_bias)
        self.key = nn.Linear(s.width, s.kv_heads * s.head_dim, bias=s.qkv_bias)
        self.value = nn.Linear(s.width, s.kv_heads * s.head_dim, bias=s.qkv_bias)
        self.output = nn.Linear(inner, s.width, bias=False)
        self.mlp_norm = RMSNorm(s.width, s.norm_eps)
        self.gate = nn.Linear(s.width, s.hidden, bias=False)
        self.up = nn.Linear(s.width, s.hidden, bias=False)
        self.down = nn.Linear(s.hidden, s.width, bias=False)
        if s.qk_norm:
            self.query_norm, self.key_norm = (
                RMSNorm(s.head_dim, s.norm_eps),
                RMSNorm(s.head_dim, s.norm_eps),
            )

    def forward(
        self,
        x: Tensor,
        rotation,
        mask=None,
        cache: KVCache | None = None,
        index: int = 0,
        start: int = 0,
    ) -> Tensor:
        """Passes rows `x [batch, n, width]`; with a cache their keys go to rows `start ...` of its layer `index`."""
        if isinstance(cache, StaticKVCache) and cache.layer_forward is not None:
            return cache.layer_forward(self, x, rotation, mask, cache, index)
        return self.mlp(self.attend(x, rotation, mask, cache, index, start))

    def attend(
        self,
        x: Tensor,
        rotation,
        mask=None,
        cache: KVCache | None = None,
        index: int = 0,
        start: int = 0,
    ) -> Tensor:
        """The first half of `forward`: x + attention(norm(x))."""
        y = self.attention_norm(x)
        q, k, v = (each.unflatten(-1, (-1, self.config.head_dim)) for each in self._read(y))
        if self.config.qk_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        q, k, v = (
            rotate(q.transpose(1, 2), rotation),
            rotate(k.transpose(1, 2), rotation),
            v.transpose(1, 2),
        )
        if cache is not None:
            k, v = cache.put(index, start, k, v)
        return x + self.output(
            self._mixed(q, k, v, mask, causal=mask is None and cache is None)
            .transpose(1, 2)
            .flatten(2)
        )

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        group = self.config.heads // self.config.kv_heads
        if group > 1 and causal:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        elif group > 1:
            # the heads that share keys are taken as more rows: a long cache is read once, and never copied
            many = q.unflatten(1, (-1, group)).flatten(2, 3)
            wide = mask if mask is None else mask.repeat(*[1] * (mask.dim() - 2), group, 1)
            return (
                F.scaled_dot_product_attention(many, k, v, attn_mask=wide)
                .unflatten(2, (group, -1))
                .flatten(1, 2)
            )
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)

    def mlp(self, x: Tensor) -> Tensor:
        """The second half of `forward`: x + SwiGLU(norm(x))."""
        y = self.mlp_norm(x)
        gate, up = F.linear(y, self.wide).chunk(2, -1) if self.fused else (self.gate(y), self.up(y))
        return x + self.down(F.silu(gate) * up)

    def _read(self, y: Tensor) -> tuple[Tensor, ...]:
        if not self.fused:
            return self.query(y), self.key(y), self.value(y)
        sizes = [each.out_features for each in (self.query, self.key, self.value)]
        return F.linear(y, self.narrow, self.narrow_bias).split(sizes, -1)

    @torch.no_grad()
    def fuse_projections(self) -> None:
        """Lays query, key and value behind one another in memory, and gate and up: passes then read each group as one matrix.

        The parameters stay, as views; for a layer that is done learning and on its device.
        """
        for name, group in (
            ("narrow", (self.query, self.key, self.value)),
            ("wide", (self.gate, self.up)),
        ):
            whole = torch.cat([each.weight for each in group])
            self.register_buffer(name, whole, persistent=False)
            for each, part in zip(group, whole.split([each.out_features for each in group])):
                each.weight.data = part
        biases = (self.query.bias, self.key.bias, self.value.bias)
        self.register_buffer(
            "narrow_bias", torch.cat(biases) if self.config.qkv_bias else None, persistent=False
        )
        self.fused = True


def frequencies(config: DecoderConfig) -> Tensor:
    """Rotary frequencies theta^(-2i / head_dim), float64 `[head_dim / 2]`."""
    return config.rope_theta ** (
        -torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    )


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turns the pairs (i, i + head_dim / 2) of each head by its position's angle."""
    cos, sin = rotation
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Decoder(nn.Module):
    """Embedding, layers, final norm and head.

    `frequency [head_dim / 2]` and `scaling` replace the plain rotary frequencies, for models that stretch them.
    """

    def __init__(
        self, config: DecoderConfig, frequency: Tensor | None = None, scaling: float = 1.0
    ):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight
        self.frequency = frequencies(config) if frequency is None else frequency
        self.scaling = scaling

    @property
    def device(self):
        return self.embed.weight.device

    @property
    def dtype(self):
        return self.embed.weight.dtype

    def cache(self, layers: int | None = None, batch: int = 1, capacity: int = 256) -> KVCache:
        """An empty cache for `layers` of this decoder's layers (all by default)."""
        layers = len(self.layers) if layers is None else layers
        return KVCache(self.config, layers, batch, capacity, self.dtype, self.device)

    def rotation(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[n, head_dim]` of integer positions `[n]`; float64 inside only for float64 models."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        angle = torch.outer(position.to(wide), self._turns(position.device, wide))
        angle = torch.cat((angle, angle), -1)
        return (angle.cos() * self.scaling).to(self.dtype), (angle.sin() * self.scaling).to(
            self.dtype
        )

    def _turns(self, device, dtype) -> Tensor:
        # copied to the device once: a pass that is captured cannot copy from the host
        source, there = self.__dict__.get("_copied", (None, None))
        if source is not self.frequency or there.device != device or there.dtype != dtype:
            self._copied = self.frequency, self.frequency.to(device, dtype)
        return self._copied[1]

    def run(
        self,
        x: Tensor,
        layers: range,
        rotation,
        mask=None,
        cache: KVCache | None = None,
        start: int = 0,
        tap: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """Passes rows `x [batch, n, width]` through `layers`; a `tap` dict receives x after each layer that it names."""
        if cache is not None:
            cache.reserve(start + x.shape[1])
        for i in layers:
            x = self.layers[i](x, rotation, mask, cache, i, start)
            if tap is not None and i + 1 in tap:
                tap[i + 1] = x
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Logits `[..., vocab]` of rows that have passed the last layer."""
        return self.head(self.norm(x))

    def forward(self, token: Tensor) -> Tensor:
        """Logits `[batch, n, vocab]` of whole texts `[batch, n]`, causal, without a cache."""
        position = torch.arange(token.shape[1], device=token.device)
        return self.logits(
            self.run(self.embed(token), range(len(self.layers)), self.rotation(position))
        )

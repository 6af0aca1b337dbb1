"""A decoder for Llama, Mistral, Qwen2 and Qwen3 that passes any range of layers under any mask.

Its logits equal those of transformers to 1e-5 in float32.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MOST = {
    "vocab": 1 << 22, "width": 1 << 17, "layers": 1024, "heads": 4096, "kv_heads": 4096,
    "head_dim": 1 << 14, "hidden": 1 << 20,
}  # fmt: skip
"""Limits of sizes, some 8 times those of the largest published decoders."""
MAX_THETA = 1e12
"""Limit of the base of rotary frequencies; published ones are below 1e9."""


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and options of a decoder."""

    vocab: int  # vocabulary size
    width: int  # size of the residual stream
    layers: int  # decoder layers
    # heads, kv_heads: query heads, and key/value heads that groups of them share
    heads: int
    kv_heads: int
    head_dim: int  # size of one head
    hidden: int  # inner size of the SwiGLU
    rope_theta: float = 10000.0  # base of the rotary frequencies
    norm_eps: float = 1e-5  # added to the mean square in RMSNorm
    tied: bool = True  # the head shares the embedding's weights
    qkv_bias: bool = False  # biases on query, key and value (Qwen2)
    qk_norm: bool = False  # RMSNorm on each query and key head (Qwen3)
    output_bias: bool = False  # a bias after the attention (Llama and Qwen3 with attention_bias)

    @property
    def weights(self) -> int:
        """Weights of the matrices and the embedding."""
        attention = 2 * self.width * self.head_dim * (self.heads + self.kv_heads)
        layer = attention + 3 * self.width * self.hidden
        return self.layers * layer + (2 - self.tied) * self.vocab * self.width

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= most:
                raise ValueError(f"{name} is {size!r:.40}, expected an integer of 1 to {most}")
        for name, limit in (("rope_theta", MAX_THETA), ("norm_eps", 1.0)):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or not 0 <= value <= limit:
                raise ValueError(f"{name} is {value!r:.40}, expected a number of at most {limit:g}")


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
    """A window of fixed tensors over a cache's first rows, and the rows int64 `[n]` that a pass
    writes. Attention covers the whole window, and a mask says which rows are valid.

    Nothing in it depends on the sequence's length, as a captured pass requires
    (`real.model.captured_passes`). layer_forward: in place of `DecoderLayer.forward`.
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


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias, of a weight that may be packed (`Decoder.pack`)."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """nn.Linear without nn.Module's call, which takes as long as a product of few small rows; its
    forward hooks run."""

    def __call__(self, x: Tensor) -> Tensor:
        if self._forward_hooks or self._forward_pre_hooks:
            return cast(Tensor, super().__call__(x))
        weight, bias = self._parameters.values()
        return linear(x, cast(Tensor, weight), bias)


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
            gate, up = linear(y, self.gate_up).chunk(2, -1)
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
        sizes = [part.out_features for part in (self.query, self.key, self.value)]
        return linear(y, self.qkv, self.qkv_bias).split(sizes, -1)

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


def initialize(model: nn.Module, seed: int) -> None:
    """Draws normal matrices of deviation 0.02, less for those that write to the residual stream.

    Residual writers (attention output, MLP down projection) get 0.02 / sqrt(2 layers).
    """
    torch.manual_seed(seed)
    layers = len(getattr(model, "layers", [])) or 1
    for name, p in model.named_parameters():
        if p.ndim == 2:
            writes = name.endswith(("output.weight", "down.weight"))
            nn.init.normal_(p, std=0.02 / (math.sqrt(2 * layers) if writes else 1.0))


class Decoder(nn.Module):
    """Embedding, layers, final norm and head.

    frequency `[head_dim / 2]` and scaling replace the default rotary frequencies. Attention is
    computed in full: sequences longer than the window are refused (`check_length`).
    """

    head: Any  # nn.Linear; of a drafter, maybe a `DraftVocabularyHead`
    context: int | None = None  # most tokens of a sequence; None: not known
    window: int | None = None  # tokens that sliding-window attention sees; None: all

    def __init__(
        self, config: DecoderConfig, frequency: Tensor | None = None, scaling: float = 1.0
    ):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.head = Linear(config.width, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight
        self.frequency = frequencies(config) if frequency is None else frequency
        self.scaling = scaling

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    def check_length(self, tokens: int) -> None:
        """ValueError for a sequence of `tokens` tokens where it is longer than the window."""
        if self.window is not None and tokens > self.window:
            raise ValueError(
                f"a sequence of {tokens:,} tokens is longer than the model's attention window of "
                f"{self.window:,}, and sliding windows are not computed; use shorter prompts or a "
                "smaller budget"
            )

    def cache(self, layers: int | None = None, batch: int = 1, capacity: int = 256) -> KVCache:
        """An empty cache for `layers` of this decoder's layers (all by default)."""
        layers = len(self.layers) if layers is None else layers
        return KVCache(self.config, layers, batch, capacity, self.dtype, self.device)

    @torch.no_grad()
    def pack(self) -> None:
        """Stores its matrices as oneDNN reads them: passes of few rows take half the time on a CPU.

        For inference alone. Does nothing on other devices, or where oneDNN has no such type.
        """
        of, usable = torch.ops.mkldnn, torch.backends.mkldnn.is_available()
        if self.dtype != torch.float32:
            usable &= self.dtype == torch.bfloat16 and of._is_mkldnn_bf16_supported()
        if not usable or self.device.type != "cpu":
            return
        whole = [self.head] if isinstance(self.head, Linear) else []
        for layer in cast(Iterable[DecoderLayer], self.layers):
            layer.fuse_projections()
            for part in (layer.query, layer.key, layer.value, layer.gate, layer.up):
                part.weight = cast(Any, None)  # a view, which would keep the joined matrix
            layer.qkv = of._reorder_linear_weight(layer.qkv)
            layer.gate_up = of._reorder_linear_weight(layer.gate_up)
            whole += [layer.output, layer.down]
        for part in whole:
            packed = of._reorder_linear_weight(part.weight.detach())
            part.weight = nn.Parameter(packed, requires_grad=False)

    def rotation(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[n, head_dim]` of positions int64 `[n]`; computed in at least
        float32."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        angle = torch.outer(position.to(wide), self._device_frequency(position.device, wide))
        angle = torch.cat((angle, angle), -1)
        cos, sin = angle.cos() * self.scaling, angle.sin() * self.scaling
        return cos.to(self.dtype), sin.to(self.dtype)

    def chain_rotation(self, start: int, rows: int) -> tuple[Tensor, Tensor]:
        """`rotation` of the positions start, start + 1, ...: rows of a table that is made once."""
        end, like = start + rows, self.embed.weight
        source, scaling, cos, sin = self.__dict__.get("_rotations", (None, 0.0, like, like))
        same = source is self.frequency and scaling == self.scaling
        fits = cos.dtype == like.dtype and cos.device == like.device and len(cos) >= end
        if not (same and fits):
            with torch.inference_mode(False), torch.no_grad():  # for passes with gradients too
                cos, sin = self.rotation(torch.arange(max(256, 2 * end), device=like.device))
            self._rotations = self.frequency, self.scaling, cos, sin
        return cos[start:end], sin[start:end]

    def _device_frequency(self, device, dtype) -> Tensor:
        # copied to the device once: a captured pass cannot copy from the host
        source, copy = self.__dict__.get("_copied", (None, None))
        if source is not self.frequency or copy.device != device or copy.dtype != dtype:
            self._copied = self.frequency, self.frequency.to(device, dtype)
        return self._copied[1]

    def run(
        self,
        x: Tensor,
        layers: range,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
        cache: KVCache | StaticKVCache | None = None,
        start: int = 0,
        tap: dict[int, Tensor | None] | None = None,
    ) -> Tensor:
        """Passes rows `x [batch, n, width]` through `layers`; the dict `tap` receives x after each
        layer that is a key."""
        if cache is not None:
            cache.reserve(start + x.shape[1])
        blocks = tuple(self.layers)  # an index into a ModuleList takes as long as a small norm
        for i in layers:
            x = blocks[i](x, rotation, mask, cache, i, start)
            if tap is not None and i + 1 in tap:
                tap[i + 1] = x
        return x

    def through(self, token: Tensor) -> Tensor:
        """Rows `[batch, n, width]` after all layers of sequences `[batch, n]`, without a cache."""
        rotation = self.rotation(torch.arange(token.shape[1], device=token.device))
        return self.run(self.embed(token), range(len(self.layers)), rotation)

    def logits(self, x: Tensor) -> Tensor:
        """Logits `[..., vocab]` of rows that have passed the last layer."""
        return self.head(self.norm(x))

    def forward(self, token: Tensor) -> Tensor:
        """Logits `[batch, n, vocab]` of whole sequences `[batch, n]`, causal, without a cache."""
        self.check_length(token.shape[1])
        return self.logits(self.through(token))

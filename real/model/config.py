"""Sizes and options of a decoder."""

import math
from dataclasses import dataclass

MOST = {
    "vocab": 1 << 22, "width": 1 << 17, "layers": 1024, "heads": 4096, "kv_heads": 4096,
    "head_dim": 1 << 14, "hidden": 1 << 20,
}  # fmt: skip
"""Limits of sizes, some 8 times those of the largest published decoders."""
MAX_THETA = 1e12
"""Limit of the base of rotary frequencies; published ones are below 1e9."""


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and options of a decoder.

    | field | meaning |
    | --- | --- |
    | vocab | vocabulary size |
    | width | size of the residual stream |
    | layers | decoder layers |
    | heads, kv_heads | query heads, and key/value heads that groups of them share |
    | head_dim | size of one head |
    | hidden | inner size of the SwiGLU |
    | rope_theta | base of the rotary frequencies |
    | norm_eps | added to the mean square in RMSNorm |
    | tied | the head shares the embedding's weights |
    | qkv_bias | biases on query, key and value (Qwen2) |
    | qk_norm | RMSNorm on each query and key head (Qwen3) |
    | output_bias | a bias after the attention (Llama and Qwen3 with attention_bias) |
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
    output_bias: bool = False

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

"""Sizes and options of a decoder."""

from dataclasses import dataclass


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
    | output_bias | a bias behind the attention (Llama and Qwen3 with attention_bias) |
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

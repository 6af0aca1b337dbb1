"""Rotary position embeddings: frequencies, and the rotation of query and key heads."""

import torch
from torch import Tensor

from real.model.config import DecoderConfig


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

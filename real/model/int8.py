"""Weights stored as int8 with one scale an output channel."""

from collections.abc import Mapping

import torch
from torch import Tensor

from real.model.hf_config import WeightsError

SCALE = ".int8_scale"
"""Suffix of the tensor that holds a matrix's scales."""
LEVELS = 127


def to_int8(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights with every floating matrix W `[out, in]` as int8 and its scales.

    round(W[i, j] / s[i]) with s[i] = max_j |W[i, j]| / 127, float32 `[out]`, under NAME.int8_scale.
    Vectors and other tensors stay as they are.
    """
    stored: dict[str, Tensor] = {}
    for name, value in state.items():
        if value.ndim != 2 or not value.is_floating_point():
            stored[name] = value
            continue
        scale = value.float().abs().amax(1) / LEVELS
        divisor = torch.where(scale > 0, scale, 1.0)[:, None]
        stored[name] = (value.float() / divisor).round().clamp(-LEVELS, LEVELS).to(torch.int8)
        stored[name + SCALE] = scale
    return stored


def from_int8(state: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The inverse of `to_int8`, in float32; states without scales are returned unchanged.

    WeightsError for scales without a matrix, of another length, negative or not finite.
    """
    scales = {name.removesuffix(SCALE): name for name in state if name.endswith(SCALE)}
    read = {name: value for name, value in state.items() if not name.endswith(SCALE)}
    for name, key in scales.items():
        value, scale = read.get(name), state[key]
        if value is None or value.dtype != torch.int8 or value.ndim != 2:
            raise WeightsError(f"{source} has {key} without an int8 matrix {name}; fetch it again")
        if scale.shape != value.shape[:1] or not scale.is_floating_point():
            raise WeightsError(
                f"{source}: {key} is {list(scale.shape)}, expected a float for each of "
                f"{value.shape[0]} rows of {name}; fetch it again"
            )
        if not scale.isfinite().all() or (scale < 0).any():
            raise WeightsError(f"{source}: {key} is not of finite scales >= 0; fetch it again")
        read[name] = value.float() * scale.float()[:, None]
    return read

"""Initial weights of a language model that is trained from scratch."""

import math

import torch
from torch import nn


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

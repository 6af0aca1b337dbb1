"""Tiny random models in float64: a target, a drafter that resembles it, and an exit, with tokens that end a text."""

import torch

from real.block import Decoder, Shape
from real.drafters.early_exit import EarlyExitDrafter, Exit
from real.drafters.model import ModelDrafter
from real.target import Target

VOCAB = 24
END = (3,)


def toy_decoder(seed: int, layers: int = 4, width: int = 16, vocab: int = VOCAB, spread: float = 0.25) -> Decoder:
    generator = torch.Generator().manual_seed(seed)
    shape = Shape(vocab, width, layers, heads=2, kv_heads=1, head_dim=8, hidden=24)
    decoder = Decoder(shape).double().requires_grad_(False)
    for name, p in decoder.named_parameters():
        if p.ndim == 2:
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * (0.6 if "embed" in name else spread))
    return decoder


def toy_target(seed: int = 0) -> Decoder:
    return toy_decoder(seed)


def toy_drafter(name: str, decoder: Decoder):
    """A drafter of the toy target that agrees with it often, not always."""
    if name == "model":
        small = Decoder(Shape(**{**decoder.shape.__dict__, "layers": 3})).double().requires_grad_(False)
        state = {k: v for k, v in decoder.state_dict().items() if not k.startswith("layers.3.")}
        small.load_state_dict(state)
        return ModelDrafter(small)
    exit = Exit(decoder, 2).double().requires_grad_(False)
    return EarlyExitDrafter(decoder, exit)


def toy_pair(name: str, seed: int = 0):
    decoder = toy_target(seed)
    drafter = toy_drafter(name, decoder)
    return Target(decoder, drafter.taps, capacity=32), drafter


def toy_prompts(count: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(4, VOCAB, (int(torch.randint(1, 9, (1,), generator=generator)),), generator=generator).tolist()
        for _ in range(count)
    ]

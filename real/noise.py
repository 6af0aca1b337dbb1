"""Gumbel noise of many text positions at once, drawn where it is used."""

import torch
from torch import Tensor

from simspec import rng

_LOW = 0xFFFFFFFF
_M0, _M1, _W0, _W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85


def gumbel(seed: int, sequence: int, first: int, count: int, vocab: int, device) -> Tensor:
    """Noise float64 `[count, vocab]` of the text positions `first` .. `first + count - 1`: `simspec.rng.gumbel` of each.

    Drawn by `rng` on the CPU. On a card the same uniforms are drawn there, bit for bit; the logarithms are the card's and may differ from
    the host's in the last place. ValueError outside the ranges of `rng.gumbel`.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return torch.from_numpy(rng.gumbel_rows(seed, sequence, torch.arange(first, first + count).numpy(), vocab))
    rng.gumbel(seed, sequence, first, 1), rng.gumbel(seed, sequence, first + count - 1, vocab and 1)  # refuses what is out of range
    return -(-uniforms(seed, sequence, first, count, vocab, device).log()).log()


def uniforms(seed: int, sequence: int, first: int, count: int, vocab: int, device) -> Tensor:
    """The uniforms float64 `[count, vocab]` in (0, 1) behind `gumbel`: Philox-4x32-10 in int64, whose products wrap as unsigned ones do."""
    quarters = -(-vocab // 4)
    wide = {"dtype": torch.int64, "device": device}
    c0, c3 = torch.full((1, 1), sequence, **wide), torch.full((1, 1), rng.GUMBEL, **wide)
    c1, c2 = torch.arange(first, first + count, **wide)[:, None], torch.arange(quarters, **wide)[None]
    k0, k1 = seed & _LOW, seed >> 32
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (p1 >> 32 & _LOW) ^ c1 ^ k0, p1 & _LOW, (p0 >> 32 & _LOW) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = k0 + _W0 & _LOW, k1 + _W1 & _LOW
    words = torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), -1).view(count, 4 * quarters)
    return (words[:, :vocab].double() + 0.5) * 2.0**-32

"""What a drafter shows after each slot: functions of its whole distribution, never of the token it picked."""

import numpy as np
import torch
from torch import Tensor

from simspec import grid

FEATURES = {
    "confidence": lambda logprob: logprob.max(-1).values.exp(),
    "entropy": lambda logprob: torch.special.entr(logprob.exp()).sum(-1),
}
GRIDS = {"confidence": "confidence", "entropy": "entropy"}


def shown(reads: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The (name, grid) pairs of the features that a policy reads; ValueError for one that no drafter here shows."""
    unknown = [name for name in reads if name not in GRIDS]
    if unknown:
        raise ValueError(f"feature {unknown[0]!r} is unknown; drafters here show {', '.join(GRIDS)}")
    return tuple((name, GRIDS[name]) for name in reads)


def read(names: tuple[str, ...], logits: Tensor, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Features of logits `[n, vocab]`: grid codes uint8 `[n, F]` and each value's distance to its bin's edge."""
    logprob = torch.log_softmax(logits.double() / temperature, -1)
    code = np.empty((len(logits), len(names)), np.uint8)
    edge = np.empty((len(logits), len(names)))
    for i, name in enumerate(names):
        code[:, i], edge[:, i] = grid.encode(FEATURES[name](logprob).cpu().numpy(), grid.TABLES[GRIDS[name]])
    return code, edge

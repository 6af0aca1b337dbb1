"""Optimizers of a language model: Muon for inner matrices, AdamW for the rest."""

import re

import torch
from torch import nn

from real.train.schedule import TrainSchedule

VOCABULARY = re.compile(r"(^|\.)(\w*embed\w*|\w*head)\.")
"""Names of matrices over the vocabulary: embed, embed_tokens, head, lm_head; not `heads`."""


def optimizers(
    parameters: dict[str, nn.Parameter], schedule: TrainSchedule
) -> list[torch.optim.Optimizer]:
    """Muon for matrices inside layers and blocks; AdamW for embeddings, heads, norms and biases."""
    inner = [p for n, p in parameters.items() if p.ndim == 2 and not VOCABULARY.search(n)]
    inner_ids = {id(p) for p in inner}
    outer = [p for p in parameters.values() if id(p) not in inner_ids]
    built: list[torch.optim.Optimizer] = []
    if inner:
        built.append(
            torch.optim.Muon(
                inner, lr=schedule.rate, weight_decay=schedule.decay, adjust_lr_fn="match_rms_adamw"
            )
        )
    if outer:
        # one kernel for all on a GPU; on a CPU the plain loop stays, bit for bit
        fused = all(p.is_cuda for p in outer)
        built.append(
            torch.optim.AdamW(
                outer, lr=schedule.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=fused
            )
        )
    return built

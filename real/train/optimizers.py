"""Optimizers of a language model: Muon for inner matrices, AdamW for the rest or for all."""

import re

import torch
from torch import nn

from real.model.bfloat16 import multiplies_bfloat16
from real.train.muon import Float32Muon
from real.train.schedule import TrainSchedule

VOCABULARY = re.compile(r"(^|\.)(\w*embed\w*|\w*head)\.")
"""Names of matrices over the vocabulary: embed, embed_tokens, head, lm_head; not `heads`."""


def optimizers(
    parameters: dict[str, nn.Parameter], schedule: TrainSchedule
) -> list[torch.optim.Optimizer]:
    """Muon for matrices inside layers and blocks; AdamW for embeddings, heads, norms and biases.

    Muon multiplies in float32 where the device emulates bfloat16. With `schedule.optimizer`
    "adamw" that for all, and weight decay of all.
    """
    if schedule.optimizer == "adamw":
        return [_adamw(list(parameters.values()), schedule, schedule.decay)]
    inner = [p for n, p in parameters.items() if p.ndim == 2 and not VOCABULARY.search(n)]
    inner_ids = {id(p) for p in inner}
    outer = [p for p in parameters.values() if id(p) not in inner_ids]
    built: list[torch.optim.Optimizer] = []
    if inner:
        muon = torch.optim.Muon if multiplies_bfloat16(inner[0].device) else Float32Muon
        built.append(
            muon(
                inner, lr=schedule.rate, weight_decay=schedule.decay, adjust_lr_fn="match_rms_adamw"
            )
        )
    if outer:
        built.append(_adamw(outer, schedule, 0.0))
    return built


def _adamw(weights: list[nn.Parameter], schedule: TrainSchedule, decay: float) -> torch.optim.AdamW:
    # one kernel for all on a GPU; on a CPU the plain loop stays, bit for bit
    fused = all(p.is_cuda for p in weights)
    return torch.optim.AdamW(
        weights, lr=schedule.rate, betas=schedule.betas, weight_decay=decay, fused=fused
    )

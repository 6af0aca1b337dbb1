"""How weights are updated: the schedule, Muon for inner matrices, and AdamW for the rest or all."""

import re
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class TrainSchedule:
    """Steps, batch shape and learning rate of one training.

    | field | meaning |
    | --- | --- |
    | steps | optimizer steps; 0 with `minutes`: as many as fit, fixed after a short timing |
    | minutes | wall-clock time aimed at where `steps` is 0 |
    | rows, length | windows in a step, and tokens in a window |
    | rate | peak learning rate; rises over `warmup` of the steps, then falls linearly to zero |
    | decay | decoupled weight decay: of Muon's matrices, or of all weights |
    | seed | addresses the windows of every step |
    | save_every | steps between checkpoints |
    | every | steps between validations; 0 is a tenth of the steps |
    | patience | validations without a better score before it stops; 0 is never |
    | optimizer | muon: Muon for inner matrices, AdamW for the rest; adamw: AdamW for all |
    | betas | of AdamW |
    | clip | largest norm of the gradient of all weights |
    """

    steps: int = 0
    minutes: float = 0.0
    rows: int = 16
    length: int = 256
    rate: float = 3e-3
    warmup: float = 0.02
    decay: float = 0.1
    seed: int = 0
    save_every: int = 100
    every: int = 0
    patience: int = 0
    optimizer: str = "muon"
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0

    def stored(self) -> dict[str, object]:
        """The fields as a card holds them; those added later only where they differ."""
        later = {field.name: field.default for field in fields(self) if field.name in LATER}
        return {k: v for k, v in asdict(self).items() if k not in later or v != later[k]}


LATER = ("optimizer", "betas", "clip")
"""Fields that cards of earlier trainings lack."""


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate at `step`: a linear rise, then a linear fall to zero."""
    rise = max(1, round(warmup * steps))
    return min((step + 1) / rise, (steps - step) / max(1, steps - rise))


VOCABULARY = re.compile(r"(^|\.)(\w*embed\w*|\w*head)\.")
"""Names of matrices over the vocabulary: embed, embed_tokens, head, lm_head; not `heads`."""


def optimizers(
    parameters: dict[str, nn.Parameter], schedule: TrainSchedule
) -> list[torch.optim.Optimizer]:
    """Muon for matrices inside layers and blocks; AdamW for embeddings, heads, norms and biases.

    With `schedule.optimizer` "adamw" that for all, and weight decay of all.
    """
    if schedule.optimizer == "adamw":
        return [_adamw(list(parameters.values()), schedule, schedule.decay)]
    inner = [p for n, p in parameters.items() if p.ndim == 2 and not VOCABULARY.search(n)]
    inner_ids = {id(p) for p in inner}
    outer = [p for p in parameters.values() if id(p) not in inner_ids]
    built: list[torch.optim.Optimizer] = []
    if inner:
        given: Any = {"lr": schedule.rate, "weight_decay": schedule.decay}
        built.append(torch.optim.Muon(inner, adjust_lr_fn="match_rms_adamw", **given))
    if outer:
        built.append(_adamw(outer, schedule, 0.0))
    return built


def _adamw(weights: list[nn.Parameter], schedule: TrainSchedule, decay: float) -> torch.optim.AdamW:
    # one kernel for all on a GPU; on a CPU the plain loop stays, bit for bit
    fused = all(p.is_cuda for p in weights)
    return torch.optim.AdamW(
        weights, lr=schedule.rate, betas=schedule.betas, weight_decay=decay, fused=fused
    )

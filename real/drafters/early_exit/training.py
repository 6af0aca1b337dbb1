"""How an early exit is trained (EESD §3.2)."""

import torch
from torch import Tensor

from real.draft import PaperRecipe, TrainingBatch, TrainingRecipe
from real.draft.losses import next_prediction_loss
from real.drafters.early_exit.drafter import EarlyExitDrafter
from real.drafters.early_exit.head import EarlyExitHead
from real.model.decoder import Decoder


def early_exit_loss(
    head: EarlyExitHead,
    target: Decoder,
    batch: TrainingBatch | Tensor,
    soft: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Cross-entropy at the learned tokens, towards these or the target's distribution."""
    batch, lm = TrainingBatch.of(batch), head.as_language_model(target)
    (x,) = batch.features(target, f"tap:{head.depth}")
    rotation = lm.rotation(torch.arange(x.shape[1], device=x.device))
    x = lm.run(x, range(head.depth, len(lm.layers)), rotation)
    return next_prediction_loss(lm, x, target, batch, soft)


RECIPE = TrainingRecipe(
    EarlyExitHead,
    early_exit_loss,
    EarlyExitDrafter,
    "exit",
    soft=False,
    rate=2e-3,
    reads=lambda head, soft: (f"tap:{head.depth}", *(["feature"] if soft else [])),
    defaults={"depth": 1},
    paper=PaperRecipe(
        "EESD §3.1-3.2 and Table 9",
        soft=False,
        settings={"layers": 1, "own_head": True},
        rate=1e-3,
        batch=64,
        silent=("optimizer", "betas", "decay", "clip", "warmup"),
    ),
)

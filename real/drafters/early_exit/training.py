"""How an early exit is trained (EESD §3.2)."""

import torch
from torch import Tensor

from real.draft import TrainingRecipe
from real.draft.losses import language_model_loss
from real.drafters.early_exit.drafter import EarlyExitDrafter
from real.drafters.early_exit.head import EarlyExitHead
from real.model.decoder import Decoder


def early_exit_loss(
    head: EarlyExitHead,
    target: Decoder,
    token: Tensor,
    soft: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Cross-entropy at `token [b, n + 1]`, towards the next token or the target's distribution."""
    return language_model_loss(head.as_language_model(target), target, token, soft)


RECIPE = TrainingRecipe(
    EarlyExitHead,
    early_exit_loss,
    EarlyExitDrafter,
    "exit",
    soft=False,
    rate=2e-3,
    defaults={"depth": 1},
)

"""How GLIDE's draft model is trained (GLIDE §4.1, arXiv 2402.02082)."""

import torch
from torch import Tensor

from real.draft import TrainingRecipe
from real.drafters.glide.drafter import GlideDrafter
from real.drafters.glide.model import GlideModel
from real.model.decoder import Decoder
from real.model.losses import distillation_loss, next_token_loss


def glide_loss(
    head: GlideModel,
    target: Decoder,
    token: Tensor,
    soft: bool = True,
    generator: torch.Generator | None = None,
    block: int = 5,
) -> Tensor:
    """Cross-entropy at `token [b, n + 1]`; target keys of a row's own block are masked.

    Towards the target's distribution, or with `soft=False` (as in the paper) the next token.
    """
    keys, hidden = head.read(target, token[:, :-1])
    logits = head.logits(target, head.teacher_forced(target, token[:, :-1], keys, block))
    if soft:
        return distillation_loss(logits, target.logits(hidden).detach())
    return next_token_loss(logits, token[:, 1:])


RECIPE = TrainingRecipe(GlideModel, glide_loss, GlideDrafter, "glide", soft=True, rate=8e-3)

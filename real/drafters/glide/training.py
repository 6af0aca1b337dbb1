"""How GLIDE's draft model is trained (GLIDE §4.1, arXiv 2402.02082)."""

import torch
from torch import Tensor

from real.draft import PaperRecipe, TrainingBatch, TrainingRecipe
from real.draft.losses import hard_loss, learned_rows, soft_loss
from real.drafters.glide.drafter import GlideDrafter
from real.drafters.glide.model import GlideModel
from real.model.decoder import Decoder


def glide_loss(
    head: GlideModel,
    target: Decoder,
    batch: TrainingBatch | Tensor,
    soft: bool = True,
    generator: torch.Generator | None = None,
    block: int = 5,
) -> Tensor:
    """Cross-entropy at the learned tokens; target keys of a row's own block are masked.

    Towards the target's distribution, or with `soft=False` (as in the paper) the next token.
    """
    batch = TrainingBatch.of(batch)
    token, learned = batch.token, batch.learning(1)
    reads = batch.features(target, *head.features, *(["feature"] if soft else []))
    keys = head.keys(reads[: len(head.features)])
    x = head.teacher_forced(target, token[:, :-1], keys, block)
    hidden, output = head.norm(learned_rows(x, learned)), head.output(target)
    if soft:
        return soft_loss(output, hidden, target, learned_rows(reads[-1], learned))
    return hard_loss(output, hidden, learned_rows(token[:, 1:], learned))


RECIPE = TrainingRecipe(
    GlideModel,
    glide_loss,
    GlideDrafter,
    "glide",
    soft=True,
    rate=8e-3,
    reads=lambda head, soft: (*head.features, *(["feature"] if soft else [])),
    paper=PaperRecipe(
        "GLIDE §4.1 and Appendices B and C, arXiv 2402.02082",
        soft=False,
        settings={"layers": 1, "shared": False, "block": 5},
        rate=5e-4,
        batch=64,
        silent=("betas", "decay", "clip", "warmup"),
    ),
)

"""How the exits are trained: together (SoFT), or the last one alone (SFT)."""

import torch
from torch import Tensor

from real.draft import PaperRecipe, TrainingBatch, TrainingRecipe
from real.draft.losses import next_prediction_loss
from real.drafters.sorted.cascade import Cascade
from real.drafters.sorted.drafter import SortedDrafter
from real.drafters.sorted.model import SortedModel, sorted_model
from real.model.decoder import Decoder


def sorted_loss(
    head: SortedModel,
    target: Decoder,
    batch: TrainingBatch | Tensor,
    soft: bool = True,
    generator: torch.Generator | None = None,
    together: bool = True,
) -> Tensor:
    """Mean over the exits of their cross-entropies (SoFT: S2D Eq. 3).

    Towards the target's distribution, or with `soft=False` towards the next token. `together` False
    trains the last exit alone (SFT).
    """
    batch = TrainingBatch.of(batch)
    position = torch.arange(batch.token.shape[1] - 1, device=batch.token.device)
    rows = head.through_exits(head.embed(batch.token[:, :-1]), head.rotation(position))
    losses = [
        next_prediction_loss(head, x, target, batch, soft) for x in rows[0 if together else -1 :]
    ]
    return torch.stack(losses).mean()


RECIPE = TrainingRecipe(
    sorted_model,
    sorted_loss,
    lambda target, head: SortedDrafter(head, Cascade(head.exits, head.settings["thresholds"])),
    "model",
    soft=True,
    rate=1e-3,
    reads=lambda head, soft: ("feature",) if soft else (),
    paper=PaperRecipe(
        "S2D §3.3 and §7.1, arXiv 2407.01955",
        soft=False,
        settings={"together": True},
        batch=128,
        silent=("rate", "optimizer", "betas", "decay", "clip", "warmup"),
    ),
)

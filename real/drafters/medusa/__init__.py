"""Medusa: residual heads on the target's last feature, each predicting one later token."""

from dataclasses import replace

from real.draft import DrafterKind, RandomInit
from real.drafters.medusa.drafter import MedusaDrafter
from real.drafters.medusa.heads import MedusaHeads
from real.drafters.medusa.parallel import ParallelMedusa
from real.drafters.medusa.published import published
from real.drafters.medusa.training import RECIPE
from real.model.draft_head import declared_heads

__all__ = ["KIND", "MedusaDrafter", "MedusaHeads", "published"]

KIND = DrafterKind(
    MedusaDrafter,
    MedusaDrafter.load,
    RECIPE,
    ParallelMedusa,
    RandomInit(
        lambda argument, target, shape, depth, seed: MedusaDrafter(
            target, MedusaHeads(target, heads=max(depth, 1)).requires_grad_(False).eval()
        ),
        lambda argument, target: [replace(target, name="medusa", layers=2, vocab=1, tied=True)],
    ),
    declared=lambda folder: declared_heads(folder, "medusa"),
)

"""Hydra: as Medusa, but each head also reads the tokens drafted before its own."""

from real.draft import DrafterKind
from real.drafters.hydra.drafter import HydraDrafter
from real.drafters.hydra.heads import HydraHeads
from real.drafters.hydra.parallel import ParallelHydra
from real.drafters.hydra.published import published
from real.drafters.hydra.training import RECIPE
from real.model.draft_head import declared_heads

__all__ = ["KIND", "HydraDrafter", "HydraHeads", "published"]

KIND = DrafterKind(
    HydraDrafter,
    HydraDrafter.load,
    RECIPE,
    ParallelHydra,
    declared=lambda folder: declared_heads(folder, "hydra"),
)

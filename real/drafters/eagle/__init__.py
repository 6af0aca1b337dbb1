"""EAGLE: a decoder layer extrapolates the target's features, read by the target's own head."""

from dataclasses import replace

from real.draft import DrafterKind, RandomInit
from real.drafters.eagle.drafter import RECIPE, EagleDrafter, ParallelEagle, eagle_loss
from real.drafters.eagle.head import INPUTS, EagleHead, publish

__all__ = ["INPUTS", "KIND", "EagleDrafter", "EagleHead", "eagle_loss", "publish"]

KIND = DrafterKind(
    EagleDrafter,
    EagleDrafter.load,
    RECIPE,
    ParallelEagle,
    RandomInit(
        lambda argument, target, shape, depth, seed: EagleDrafter(
            target, EagleHead(target).requires_grad_(False).eval()
        ),
        lambda argument, target: [replace(target, name="eagle", layers=2, vocab=1, tied=True)],
    ),
)

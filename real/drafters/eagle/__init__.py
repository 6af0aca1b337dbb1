"""EAGLE: a decoder layer extrapolates the target's features, read by the target's own head."""

from real.draft import DrafterKind
from real.drafters.eagle.drafter import RECIPE, EagleDrafter, ParallelEagle, eagle_loss
from real.drafters.eagle.head import INPUTS, EagleHead, publish

__all__ = ["INPUTS", "KIND", "EagleDrafter", "EagleHead", "eagle_loss", "publish"]

KIND = DrafterKind(EagleDrafter, EagleDrafter.load, RECIPE, ParallelEagle)

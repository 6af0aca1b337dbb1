"""GLIDE: a shallow language model with cross-attention over the target's KV cache."""

from real.draft import DrafterKind
from real.drafters.glide.drafter import RECIPE, GlideDrafter, ParallelGlide, glide_loss
from real.drafters.glide.model import GlideModel, blockwise_mask

__all__ = ["KIND", "GlideDrafter", "GlideModel", "blockwise_mask", "glide_loss"]

KIND = DrafterKind(GlideDrafter, GlideDrafter.load, RECIPE, ParallelGlide)

"""GLIDE: a shallow language model with cross-attention over the target's KV cache."""

from real.draft import DrafterKind
from real.drafters.glide.cross_attention import blockwise_mask
from real.drafters.glide.drafter import GlideDrafter
from real.drafters.glide.model import GlideModel
from real.drafters.glide.parallel import ParallelGlide
from real.drafters.glide.training import RECIPE, glide_loss

__all__ = ["KIND", "GlideDrafter", "GlideModel", "blockwise_mask", "glide_loss"]

KIND = DrafterKind(GlideDrafter, GlideDrafter.load, RECIPE, ParallelGlide)

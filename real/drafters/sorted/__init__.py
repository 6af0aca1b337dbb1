"""Sorted drafting: nested exits of one small language model (S2D, arXiv 2407.01955)."""

from real.draft import DrafterKind
from real.drafters.sorted.cascade import Cascade
from real.drafters.sorted.drafter import SortedDrafter
from real.drafters.sorted.model import SortedModel, sorted_model
from real.drafters.sorted.parallel import ParallelSorted
from real.drafters.sorted.training import RECIPE, sorted_loss

__all__ = [
    "KIND",
    "Cascade",
    "ParallelSorted",
    "SortedDrafter",
    "SortedModel",
    "sorted_loss",
    "sorted_model",
]

KIND = DrafterKind(SortedDrafter, SortedDrafter.load, RECIPE, ParallelSorted)

"""Interfaces that the decode loop, the recorder and the trainer require of a drafter."""

from real.draft.kind import DrafterKind, PaperRecipe, ParallelDrafter, TrainingRecipe
from real.draft.losses import TrainingBatch
from real.draft.protocol import CachedDrafter, Draft, Drafter, Pick, Silent, Step, check_grows

__all__ = [
    "CachedDrafter",
    "Draft",
    "Drafter",
    "DrafterKind",
    "PaperRecipe",
    "ParallelDrafter",
    "Pick",
    "Silent",
    "Step",
    "TrainingBatch",
    "TrainingRecipe",
    "check_grows",
]

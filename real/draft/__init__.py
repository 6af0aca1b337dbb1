"""What the decode loop, the recorder and the trainer require of a drafter."""

from real.draft.batch import TrainingBatch
from real.draft.kind import DrafterKind, PaperRecipe, RandomInit, TrainingRecipe
from real.draft.parallel import ParallelDrafter
from real.draft.protocol import Draft, Drafter, Pick, Silent, Step, check_grows

__all__ = [
    "Draft",
    "Drafter",
    "DrafterKind",
    "PaperRecipe",
    "ParallelDrafter",
    "Pick",
    "RandomInit",
    "Silent",
    "Step",
    "TrainingBatch",
    "TrainingRecipe",
    "check_grows",
]

"""Drafters, one mechanism a file; each loads from a folder: (folder, target decoder, `real.weights.made_for` of it) -> Drafter."""

from real.drafters.early_exit import EarlyExitDrafter
from real.drafters.model import ModelDrafter

BUILTIN = {
    "model": ModelDrafter.load,
    "early_exit": EarlyExitDrafter.load,
}

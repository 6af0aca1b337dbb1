"""Drafters, one mechanism a file; each loads from a folder: (folder, target decoder, `real.weights.made_for` of it) -> Drafter."""

from real.drafters.eagle import EagleDrafter
from real.drafters.early_exit import EarlyExitDrafter
from real.drafters.glide import GlideDrafter
from real.drafters.hydra import HydraDrafter
from real.drafters.medusa import MedusaDrafter
from real.drafters.model import ModelDrafter
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.drafters.self_skip import SelfSkipDrafter

BUILTIN = {
    "model": ModelDrafter.load,
    "early_exit": EarlyExitDrafter.load,
    "self_skip": SelfSkipDrafter.load,
    "prompt_lookup": PromptLookupDrafter.load,
    "eagle": EagleDrafter.load,
    "medusa": MedusaDrafter.load,
    "hydra": HydraDrafter.load,
    "glide": GlideDrafter.load,
}

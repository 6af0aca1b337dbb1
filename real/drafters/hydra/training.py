"""How Hydra's heads are trained: by Medusa's loss, teacher forcing the tokens before each head."""

from real.draft import TrainingRecipe
from real.draft.losses import multi_head_loss
from real.drafters.hydra.drafter import HydraDrafter
from real.drafters.hydra.heads import HydraHeads

RECIPE = TrainingRecipe(
    HydraHeads,
    multi_head_loss,
    HydraDrafter,
    "hydra",
    soft=True,
    rate=8e-3,
    reads=lambda head, soft: ("feature",),
    defaults={"residual": True, "blocks": 2},
)

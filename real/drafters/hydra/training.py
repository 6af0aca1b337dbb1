"""How Hydra's heads are trained: by Medusa's loss, teacher forcing the tokens before each head."""

from real.draft import PaperRecipe, TrainingRecipe
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
    paper=PaperRecipe(
        "the command in README.md of zankner/Hydra at 7f39cbd, for Hydra++: its loss and optimizer",
        soft=True,
        settings={"blocks": 1, "own_head": True, "residual": True, "decay": 1.0},
        rate=5e-4,
        decay=0.1,
        batch=32,
        silent=("betas", "clip", "warmup as a share of the steps", "plain heads"),
    ),
)

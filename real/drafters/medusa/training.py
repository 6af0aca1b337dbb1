"""How Medusa's heads are trained (Medusa §2.2.1, arXiv 2401.10774)."""

from real.draft import TrainingRecipe
from real.draft.losses import multi_head_loss
from real.drafters.medusa.drafter import MedusaDrafter
from real.drafters.medusa.heads import MedusaHeads

RECIPE = TrainingRecipe(
    MedusaHeads,
    multi_head_loss,
    MedusaDrafter,
    "medusa",
    soft=True,
    rate=8e-3,
    reads=lambda head, soft: ("feature",),
    defaults={"blocks": 3},
)

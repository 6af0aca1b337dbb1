"""How Medusa's heads are trained (Medusa §2.2.1, arXiv 2401.10774)."""

from real.draft import PaperRecipe, TrainingRecipe
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
    paper=PaperRecipe(
        "Medusa §2.2.1, arXiv 2401.10774; scripts/train_vicuna_7b.sh of FasterDecoding/Medusa at "
        "ab5d60c for the optimizer; EESD Table 9 has the same rate and batch",
        soft=False,
        settings={"blocks": 1, "own_head": True, "decay": 0.8},
        rate=1e-3,
        warmup=0.1,
        batch=64,
        silent=("betas", "clip"),
    ),
)

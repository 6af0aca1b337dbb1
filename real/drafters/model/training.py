"""How a small language model is trained to draft."""

from typing import Any

import torch
from torch import Tensor

from real.draft import TrainingBatch, TrainingRecipe
from real.draft.losses import language_model_loss
from real.drafters.model.drafter import ModelDrafter
from real.model.config import DecoderConfig
from real.model.decoder import Decoder
from real.model.draft_vocabulary import TiedDraftVocabularyHead, check_vocabulary
from real.model.initialization import initialize


class SmallModel(Decoder):
    """A decoder that can be restricted to a draft vocabulary while it trains; tied."""

    draft_token: Tensor | None

    def restrict(self, target: Decoder, token: Tensor) -> None:
        """Drafts from `token [N]` alone: rows of its own embedding."""
        self.draft_token = check_vocabulary(token, target.config.vocab)
        self.head = TiedDraftVocabularyHead(self.embed, token)


def small_model(
    target: Decoder,
    width: int = 64,
    layers: int = 2,
    heads: int = 2,
    kv_heads: int = 0,
    head_dim: int = 32,
    hidden: int = 160,
) -> Decoder:
    """A language model of the given sizes with the target's vocabulary, drawn from torch's seed.

    `kv_heads` 0 means as many as `heads`. ValueError for sizes that no decoder has.
    """
    sizes: dict[str, Any] = {
        "width": width,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads or heads,
        "head_dim": head_dim,
        "hidden": hidden,
    }
    if min(sizes.values()) < 1 or head_dim % 2:
        raise ValueError(f"sizes are {sizes}; expected 1 or more each, and an even head_dim")
    model = SmallModel(DecoderConfig(target.config.vocab, **sizes))
    model.draft_token = None
    initialize(model, torch.initial_seed())
    model.settings = sizes  # type: ignore[assignment]  # no parameter
    return model.to(target.device, target.dtype)


def model_loss(
    head: Decoder,
    target: Decoder,
    batch: TrainingBatch | Tensor,
    soft: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Cross-entropy at the learned tokens, towards the target's distribution or these."""
    return language_model_loss(head, target, TrainingBatch.of(batch), soft)


RECIPE = TrainingRecipe(
    small_model,
    model_loss,
    lambda target, head: ModelDrafter(head),
    "model",
    soft=True,
    reads=lambda head, soft: ("feature",) if soft else (),
)

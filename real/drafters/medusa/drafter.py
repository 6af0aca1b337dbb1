"""Drafting by parallel heads (Medusa, arXiv 2401.10774)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from real.draft import Drafter, Pick, Step
from real.drafters.medusa.heads import MedusaHeads
from real.drafters.medusa.published import published
from real.model.decoder import Decoder
from real.model.draft_head import load_draft_head
from real.model.tree_mask import depths


class MedusaDrafter(Drafter):
    """Drafts one token a head from the feature behind the last committed token.

    All heads run in one pass, at the first step. No head reads the last committed token, which has
    not been through the target, nor any draft: a function of the feature (`history_free`, not
    `prefix_only`). Nothing is offered behind the last head, or after a prompt of one token.
    """

    name = "medusa"
    prefix_only = False
    history_free = True
    captures = True

    def __init__(self, target: Decoder, head: MedusaHeads):
        self.decoder, self.head = target, head
        self.max_draft_length: int = len(head.stacks)
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "MedusaDrafter":
        """From medusa.json and medusa.safetensors, or from a released checkpoint (`published`)."""
        folder = Path(folder)
        if (folder / "config.json").exists() and not (folder / "medusa.json").exists():
            return cls(target, published(folder, target))
        return cls(target, load_draft_head(MedusaHeads, folder, "medusa", target, made_for))

    @torch.inference_mode()
    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.pick, self.drafted = pick, 0
        self.parent: list[int] = []
        self.feature: Any = self.decoder.norm(prefill.hidden[-1]) if len(prefill.hidden) else None

    @torch.inference_mode()
    def next(self) -> Step | None:
        slot = self.drafted
        if self.feature is None or slot == self.max_draft_length:
            return None
        if not slot:
            self._run_heads()
        self.drafted += 1
        logits, hidden = self.logits[slot], self.hidden[slot]
        return Step(self.pick(logits, slot, hidden), slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor | None:
        if self.feature is None:
            return None
        if not self.parent:
            self._run_heads()
        self.parent = self.parent + parent
        return torch.stack([self.logits[depth] for depth in depths(self.parent)[-len(token) :]])

    def rollback(self, accepted: int) -> None:
        self.drafted, self.parent = 0, []

    @torch.inference_mode()
    def catch_up(self, tokens: list[int], output, path: list[int]) -> None:
        self.feature = self.decoder.norm(output.hidden[path[-1]])

    def _run_heads(self) -> None:
        head, target = self.head, self.decoder

        def heads(feature: Tensor) -> tuple[Tensor, ...]:
            hidden = [stack(feature) for stack in head.stacks]
            return *hidden, *(head.logits(target, j, x) for j, x in enumerate(hidden))

        output = self.passes.call(self.name, heads, self.feature)
        self.hidden, self.logits = output[: self.max_draft_length], output[self.max_draft_length :]

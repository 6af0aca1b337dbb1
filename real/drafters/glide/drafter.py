"""Drafting with cross-attention over the target's KV cache (GLIDE §4.1, arXiv 2402.02082)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from real.draft import Drafter, PaperRecipe, Pick, Step, TrainingBatch, TrainingRecipe
from real.draft.drafted_logits import DraftedLogits
from real.draft.kind import Proposal
from real.draft.losses import hard_loss, learned_rows, soft_loss
from real.drafters.glide.model import GlideModel
from real.model.decoder import Decoder
from real.model.draft_head import load_draft_head
from real.model.full_pass import BranchCache, TargetPass, causal_mask
from real.model.kv_cache import KVCache


class GlideDrafter(Drafter):
    """Drafts with cross-attention over the target's keys of all committed rows, at every step.

    Step i of a round is i rows away from the newest key (not `prefix_only`, but for `cross=False`).

    | layers | rebuild | rows of accepted drafts |
    | --- | --- | --- |
    | 1 | any | stay: their keys depend on tokens alone |
    | 2 or more | True | are dropped, and enter anew with the next round's first step |
    | 2 or more | False | stay as drafted: the drafter is not `history_free` |
    """

    name = "glide"

    def __init__(self, target: Decoder, head: GlideModel):
        self.decoder, self.head = target, head
        self.prefix_only = not head.cross
        # whether rows of accepted drafts equal fresh ones
        self.reusable = len(head.layers) == 1 or not head.cross
        self.history_free = self.reusable or head.rebuild
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "GlideDrafter":
        """From glide.json and glide.safetensors, as `save_draft_head` writes them."""
        return cls(target, load_draft_head(GlideModel, folder, "glide", target, made_for))

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.target, self.pick = target, pick
        layers, capacity = len(self.head.layers), len(prompt) + 64
        dtype, device = self.decoder.dtype, self.decoder.device
        self.cache = KVCache(self.head.config, layers, 1, capacity, dtype, device)
        self.committed = list(prompt)
        self.draft: list[int] = []
        self.parent: list[int] = []
        self.rows = 0
        if len(prompt) > 1:
            self._append(prompt[:-1])

    @torch.inference_mode()
    def next(self) -> Step:
        slot = len(self.draft)
        hidden = self._append(self.draft[-1:] if slot else self._backlog())[-1]
        logits = self.head.logits(self.decoder, hidden)
        self.draft.append(self.pick(logits, slot))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor:
        if not self.parent:
            hidden = self._append(self._backlog())[-1:]
            self.parent = list(parent)
        else:
            self.parent, root = self.parent + parent, self.rows
            self.rows = root - 1 + len(self.parent) - len(token)
            hidden = self._append(token, self.parent)
            self.rows = root  # rows of a tree are not counted
        return self.head.logits(self.decoder, hidden)

    def rollback(self, accepted: int) -> None:
        valid = accepted if self.reusable or not self.head.rebuild else 0
        self.rows = min(self.rows, len(self.committed) + valid)
        self.draft, self.parent = [], []

    def catch_up(self, tokens: list[int], output, path) -> None:
        self.committed += tokens

    def _backlog(self) -> list[int]:
        """Committed tokens without a valid row: at least the last one, recomputed if need be."""
        self.rows = min(self.rows, len(self.committed) - 1)
        return self.committed[self.rows :]

    @torch.inference_mode()
    def _append(self, tokens: list[int], parent: Sequence[int] = ()) -> Tensor:
        device, start, committed = self.decoder.device, self.rows, self.target.length
        cache = self.target.cache
        keys = [
            (cache.key[i][:, :, :committed], cache.value[i][:, :, :committed])
            for i in self.head.reads
        ]
        # a drafted row attends to every key, a committed one to those before it
        mask = None
        if start < committed:
            place = torch.arange(start, start + len(tokens), device=device)
            mask = torch.arange(committed, device=device) < place[:, None]
        token = torch.tensor([tokens], device=device)
        x = self.head.run(self.decoder, token, keys, mask, self.cache, start, parent)
        self.rows += len(tokens)
        return x[0]


class ParallelGlide:
    """Committed rows attend to the target's keys before them, drafts to those before their root."""

    min_context = 1

    def __init__(self, drafter: GlideDrafter, sequence: TargetPass):
        self.head, self.target, self.sequence = drafter.head, sequence.target, sequence
        self.rows, self.cached_layers = len(sequence.token), len(self.head.layers)
        device, dtype = sequence.token.device, self.target.dtype
        self.cache = KVCache(self.head.config, self.cached_layers, 1, self.rows, dtype, device)
        own = causal_mask(self.rows, device)
        rotation = self.target.rotation(torch.arange(self.rows, device=device))
        self.true = self._forward(sequence.token[None], rotation, (own, own.tril(-1)), self.cache)[
            0
        ]

    def start(self, position: Tensor) -> Proposal:
        row = position + self.sequence.prompt_length - 1
        self.branches: Any = BranchCache(self.cache, self.rows, row + 1)
        place = torch.arange(self.rows, device=row.device)
        self.visible = (place < row[:, None])[:, None, None]
        hidden = self.true[row][:, None]
        return self._propose(hidden)

    def extend(self, parent: Tensor, token: Tensor) -> Proposal:
        rotation, own = self.branches.step(parent, self.target)
        hidden = self._forward(token, rotation, (own, self.visible), self.branches)
        return self._propose(hidden)

    def _propose(self, hidden: Tensor) -> Proposal:
        output = self.head.output(self.target)
        return DraftedLogits.from_head(output, self.head.norm(hidden)), hidden

    def _forward(self, token: Tensor, rotation, masks, cache) -> Tensor:
        keys = []
        if self.head.cross:
            stored = self.sequence.cache
            keys = [(stored.key[i], stored.value[i]) for i in self.head.reads]
        return self.head.layered(self.target, token, rotation, masks, keys, cache)


def glide_loss(
    head: GlideModel,
    target: Decoder,
    batch: TrainingBatch | Tensor,
    soft: bool = True,
    generator: torch.Generator | None = None,
    block: int = 5,
) -> Tensor:
    """Cross-entropy at the learned tokens; target keys of a row's own block are masked.

    Towards the target's distribution, or with `soft=False` (as in the paper) the next token.
    """
    batch = TrainingBatch.of(batch)
    token, learned = batch.token, batch.learning(1)
    reads = batch.features(target, *head.features, *(["feature"] if soft else []))
    keys = head.keys(reads[: len(head.features)])
    x = head.teacher_forced(target, token[:, :-1], keys, block)
    hidden, output = head.norm(learned_rows(x, learned)), head.output(target)
    if soft:
        return soft_loss(output, hidden, target, learned_rows(reads[-1], learned))
    return hard_loss(output, hidden, learned_rows(token[:, 1:], learned))


RECIPE = TrainingRecipe(
    GlideModel,
    glide_loss,
    GlideDrafter,
    "glide",
    soft=True,
    rate=8e-3,
    reads=lambda head, soft: (*head.features, *(["feature"] if soft else [])),
    paper=PaperRecipe(
        "GLIDE §4.1 and Appendices B and C, arXiv 2402.02082",
        soft=False,
        settings={"layers": 1, "shared": False, "block": 5},
        rate=5e-4,
        batch=64,
        silent=("betas", "decay", "clip", "warmup"),
    ),
)

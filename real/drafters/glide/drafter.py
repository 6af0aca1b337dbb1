"""Drafting with cross-attention over the target's KV cache (GLIDE §4.1, arXiv 2402.02082)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from real.draft import Drafter, Pick, Step
from real.drafters.glide.model import GlideModel
from real.model.decoder import Decoder
from real.model.draft_head import load_draft_head
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

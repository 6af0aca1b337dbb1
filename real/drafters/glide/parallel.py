"""GLIDE's drafts from many positions at once."""

from typing import Any

import torch
from torch import Tensor

from real.draft.drafted_logits import DraftedLogits
from real.draft.parallel import Proposal
from real.drafters.glide.drafter import GlideDrafter
from real.model.branch_cache import BranchCache
from real.model.full_pass import TargetPass, causal_mask
from real.model.kv_cache import KVCache


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

"""A sorted model's drafts from many positions at once."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from real.draft.parallel import Proposal
from real.drafters.sorted.drafter import SortedDrafter
from real.model.branch_cache import BranchCache
from real.model.full_pass import TargetPass, causal_mask


class ParallelSorted:
    """Drafts of the chosen exits (`start`, `extend`), or hidden states of all exits.

    `at` and `behind` return the hidden states `[m, n, width]` of every exit.
    """

    min_context = 1

    def __init__(self, drafter: SortedDrafter, sequence: TargetPass):
        self.lm, self.cascade = drafter.decoder, drafter.cascade
        self.prompt_length, self.rows = sequence.prompt_length, len(sequence.token)
        device = sequence.token.device
        self.cache = self.lm.cache(capacity=self.rows)
        rotation = self.lm.rotation(torch.arange(self.rows, device=device))
        x = self.lm.embed(sequence.token[None])
        self.hidden = self.lm.through_exits(x, rotation, causal_mask(self.rows, device), self.cache)
        self.cached_layers = len(self.lm.layers)

    def at(self, position: Tensor) -> Sequence[Tensor]:
        self.branches: Any = BranchCache(self.cache, self.rows, position + self.prompt_length)
        return [rows[0, position + self.prompt_length - 1][:, None] for rows in self.hidden]

    def behind(self, parent: Tensor, token: Tensor) -> Sequence[Tensor]:
        rotation, mask = self.branches.step(parent, self.lm)
        return self.lm.through_exits(self.lm.embed(token), rotation, mask, self.branches)

    def start(self, position: Tensor) -> Proposal:
        return self.cascade.choose(self.lm, self.at(position))

    def extend(self, parent: Tensor, token: Tensor) -> Proposal:
        return self.cascade.choose(self.lm, self.behind(parent, token))

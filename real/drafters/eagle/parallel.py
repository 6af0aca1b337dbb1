"""EAGLE's drafts from many positions at once."""

from typing import Any

import torch
from torch import Tensor

from real.draft.drafted_logits import DraftedLogits
from real.draft.parallel import Proposal
from real.drafters.eagle.drafter import EagleDrafter
from real.model.branch_cache import BranchCache
from real.model.full_pass import TargetPass, causal_mask


class ParallelEagle:
    """Rows of true features once over the sequence; then estimates, branching at each position."""

    min_context = 2

    def __init__(self, drafter: EagleDrafter, sequence: TargetPass):
        self.head, self.target, self.sequence = drafter.head, sequence.target, sequence
        self.rows, self.cached_layers = len(sequence.token) - 1, len(self.head.layers)
        self.cache = self.target.cache(layers=self.cached_layers, capacity=self.rows)
        place = torch.arange(self.rows, device=sequence.token.device)
        token = sequence.token[self.head.shift :][: self.rows][None]
        feature = self.target.norm(sequence.hidden)[: self.rows][None]
        rotation, mask = self.target.rotation(place), causal_mask(self.rows, place.device)
        self.true = self._forward(feature, token, rotation, mask, self.cache)[0]

    def start(self, position: Tensor) -> Proposal:
        row = position + self.sequence.prompt_length - 2
        self.branches: Any = BranchCache(self.cache, self.rows, row + 1)
        self.token = self.sequence.token[row + 1][:, None]
        self.estimate = self.true[row][:, None]
        return DraftedLogits.from_head(self.head.output(self.target), self.estimate), self.estimate

    def extend(self, parent: Tensor, token: Tensor) -> Proposal:
        read = token if self.head.shift else self.token.gather(1, parent)
        width = self.estimate.shape[2]
        feature = self.estimate.gather(1, parent[..., None].expand(*parent.shape, width))
        rotation, mask = self.branches.step(parent, self.target)
        self.estimate = self._forward(feature, read, rotation, mask, self.branches)
        self.token = token
        return DraftedLogits.from_head(self.head.output(self.target), self.estimate), self.estimate

    def _forward(self, feature, token, rotation, mask, cache) -> Tensor:
        return self.head.estimate(self.target, feature, token, rotation, mask, cache)

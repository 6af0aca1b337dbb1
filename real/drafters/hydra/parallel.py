"""Hydra's drafts from many positions at once."""

import torch
from torch import Tensor

from real.draft.drafted_logits import DraftedLogits
from real.draft.parallel import Proposal
from real.drafters.hydra.drafter import HydraDrafter
from real.model.full_pass import TargetPass


class ParallelHydra:
    """Heads on the last feature, on the last committed token and on the drafts before theirs."""

    min_context = 2
    cached_layers = 0

    def __init__(self, drafter: HydraDrafter, sequence: TargetPass):
        self.head, self.target, self.sequence = drafter.head, sequence.target, sequence
        self.features = self.target.norm(sequence.hidden)

    def start(self, position: Tensor) -> Proposal:
        row = position + self.sequence.prompt_length - 2
        self.feature = self.features[row]
        self.path = self.sequence.token[row + 1].view(-1, 1, 1)
        return self._propose()

    def extend(self, parent: Tensor, token: Tensor) -> Proposal:
        length = self.path.shape[2]
        above = self.path.gather(1, parent[..., None].expand(*parent.shape, length))
        self.path = torch.cat((above, token[..., None]), 2)
        return self._propose()

    def _propose(self) -> Proposal:
        embeddings = self.target.embed(self.path).flatten(2)
        slot = self.path.shape[2] - 1
        feature = self.feature[:, None].expand(-1, embeddings.shape[1], -1)
        hidden = self.head.stacks[slot](torch.cat((feature, embeddings), -1))
        return DraftedLogits.from_head(self.head.output(self.target, slot), hidden), hidden

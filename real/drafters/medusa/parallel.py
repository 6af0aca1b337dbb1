"""Medusa's drafts from many positions at once."""

from dataclasses import replace

from torch import Tensor

from real.draft.drafted_logits import DraftedLogits
from real.draft.parallel import Proposal
from real.drafters.medusa.drafter import MedusaDrafter
from real.model.full_pass import TargetPass


class ParallelMedusa:
    """Heads on the feature behind the last committed token; no head reads a draft."""

    min_context = 2
    cached_layers = 0

    def __init__(self, drafter: MedusaDrafter, sequence: TargetPass):
        self.head, self.target = drafter.head, sequence.target
        self.prompt_length = sequence.prompt_length
        self.features = self.target.norm(sequence.hidden)

    def start(self, position: Tensor) -> Proposal:
        self.slot, self.feature = 0, self.features[position + self.prompt_length - 2]
        return self._propose(1)

    def extend(self, parent: Tensor, token: Tensor) -> Proposal:
        self.slot += 1
        return self._propose(token.shape[1])

    def _propose(self, rows: int) -> Proposal:
        hidden = self.head.stacks[self.slot](self.feature)
        drafted = DraftedLogits.from_head(self.head.output(self.target, self.slot), hidden)
        logits = drafted.logits[:, None].expand(-1, rows, -1)
        return replace(drafted, logits=logits), hidden[:, None].expand(-1, rows, -1)

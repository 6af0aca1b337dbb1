"""Drafts from many positions of one sequence at once: how a drafter is recorded in parallel."""

from typing import Any, Protocol

from torch import Tensor

from real.draft.drafted_logits import DraftedLogits
from real.draft.protocol import Drafter
from real.model.branch_cache import BranchCache
from real.model.full_pass import TargetPass, full_pass

Proposal = tuple[DraftedLogits | Tensor, Tensor]
"""Logits `[m, n, vocab]` of m positions, and the hidden states `[m, n, d_D]` they come from.

With a draft vocabulary `DraftedLogits` say the same in fewer columns."""
MAX_BYTES = 1 << 30
"""Of a step's logits, or of its attention's scores; longer sequences are recorded in batches."""


class ParallelDrafter(Protocol):
    """A drafter on a whole sequence; `real.record.stepwise` has the definition.

    | member | meaning |
    | --- | --- |
    | min_context | committed tokens that the drafter needs to offer something |
    | cached_layers | layers whose keys and values it stores for every position |
    | start | proposal behind the true prefix of each of `position [m]`; n is 1 |
    | extend | proposal behind `token [m, n]`, children of rows `parent [m, n]` of the last step |
    """

    min_context: int
    cached_layers: int

    def start(self, position: Tensor) -> Proposal: ...

    def extend(self, parent: Tensor, token: Tensor) -> Proposal: ...


class ParallelFactory(Protocol):
    """A class of parallel forms: (drafter, sequence) -> the drafter's parallel form."""

    min_context: int

    def __call__(self, drafter: Any, sequence: TargetPass, /) -> ParallelDrafter: ...


class ParallelLanguageModel:
    """Any drafter that is a language model of its own, `drafter.lm`."""

    min_context = 1

    def __init__(self, drafter: Drafter, sequence: TargetPass):
        assert drafter.lm is not None
        self.lm, self.prompt_length = drafter.lm, sequence.prompt_length
        self.rows = len(sequence.token)
        self.hidden, self.cache = full_pass(self.lm, sequence.token)
        self.cached_layers = len(self.lm.layers)

    def start(self, position: Tensor) -> Proposal:
        self.branches: Any = BranchCache(self.cache, self.rows, position + self.prompt_length)
        hidden = self.hidden[position + self.prompt_length - 1][:, None]
        return DraftedLogits.from_head(self.lm.head, self.lm.norm(hidden)), hidden

    def extend(self, parent: Tensor, token: Tensor) -> Proposal:
        lm = self.lm
        rotation, mask = self.branches.step(parent, lm)
        layers = range(len(lm.layers))
        hidden = lm.run(lm.embed(token), layers, rotation, mask, self.branches)
        return DraftedLogits.from_head(lm.head, lm.norm(hidden)), hidden


def position_batches(
    position: Tensor, rows: int, sequence: TargetPass, parallel: ParallelDrafter, drafts: int = 1
) -> tuple[Tensor, ...]:
    """Splits the positions into batches of at most `MAX_BYTES`.

    Each position takes `drafts` drafts, each of `rows` rows in a step.
    """
    s, length = sequence.target.config, len(sequence.token)
    logits = 8 * rows * s.vocab
    # scores of one layer's attention, a copy of them and their softmax
    attention = 3 * 4 * rows * s.heads * length if parallel.cached_layers else 0
    return position.split(max(1, MAX_BYTES // (drafts * max(logits, attention))))

"""Declaration of one kind of drafter: how it is loaded, trained and recorded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.draft.protocol import Drafter
from real.model.decoder import Decoder
from real.model.draft_head import DraftVocabularyHead
from real.model.passes import BranchCache, TargetPass, full_pass


@dataclass(frozen=True)
class DraftedLogits:
    """Logits over what a drafter drafts from; those of all other tokens are -inf."""

    # logits [..., N], vocab: of these tokens; tokens of the whole vocabulary
    logits: Tensor
    vocab: int
    token: Tensor | None  # int64 [N]: the tokens, ascending; None: all of them, or nearly

    @classmethod
    def of(cls, logits: "Tensor | DraftedLogits") -> "DraftedLogits":
        """Of logits `[..., vocab]`, whose columns of -inf alone are left out; or of themselves."""
        if isinstance(logits, DraftedLogits):
            return logits
        vocab = logits.shape[-1]
        token = (logits.reshape(-1, vocab) != -torch.inf).any(0).nonzero()[:, 0]
        if not 2 <= len(token) <= vocab // 2:
            return cls(logits, vocab, None)
        return cls(logits[..., token], vocab, token)

    @classmethod
    def from_head(cls, head: nn.Module, x: Tensor) -> "DraftedLogits":
        """Of rows `x [..., width]` after a vocabulary head or a tied embedding."""
        if isinstance(head, DraftVocabularyHead):
            return cls(head.compact(x), len(head.place), head.token)
        logits = F.linear(x, head.weight) if isinstance(head, nn.Embedding) else head(x)
        return cls(logits, logits.shape[-1], None)

    def __getitem__(self, rows) -> "DraftedLogits":
        """Some rows, by any index of the dimensions before the last."""
        return replace(self, logits=self.logits[rows])

    def whole(self) -> Tensor:
        """Logits `[..., vocab]` of all tokens."""
        if self.token is None:
            return self.logits
        full = self.logits.new_full((*self.logits.shape[:-1], self.vocab), -torch.inf)
        return full.index_copy(-1, self.token, self.logits)

    def place(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """The column of each of `token [n]`, and whether it has one."""
        if self.token is None:
            return token, torch.ones_like(token, dtype=torch.bool)
        column = torch.searchsorted(self.token, token).clamp(max=len(self.token) - 1)
        return column, self.token[column] == token

    def tokens(self, column: Tensor) -> Tensor:
        """The tokens of columns."""
        return column if self.token is None else self.token[column]

    def rank(self, scores: Tensor, token: Tensor) -> Tensor:
        """Rank of each of `token [n]` in scores `[n, N]`, as in those of the whole vocabulary."""
        if self.token is None:
            return rank_of(scores, token)
        column, inside = self.place(token)
        score = scores.gather(-1, column[:, None]).where(inside[:, None], -torch.inf)
        above, earlier = scores > score, self.token < token[:, None]
        tied = ((scores == score) & earlier).sum(-1)
        left_out = token - earlier.sum(-1)  # tokens before it that have no column: -inf as well
        return above.sum(-1) + tied + left_out.where(score[:, 0] == -torch.inf, 0)


def rank_of(scores: Tensor, token: Tensor) -> Tensor:
    """Rank of each of `token [n]` in `scores [n, vocab]`; ties go to the smaller index."""
    score = scores.gather(-1, token[:, None])
    index = torch.arange(scores.shape[-1], device=scores.device)
    return ((scores > score) | ((scores == score) & (index < token[:, None]))).sum(-1)


Proposal = tuple[DraftedLogits | Tensor, Tensor]
"""Logits `[m, n, vocab]` of m positions, and the hidden states `[m, n, d_D]` they come from.

With a draft vocabulary `DraftedLogits` say the same in fewer columns."""
MAX_BYTES = 1 << 30
"""Of a step's logits, or of its attention's scores; longer sequences are recorded in batches."""


class ParallelDrafter(Protocol):
    """A drafter on a whole sequence; `real.record.rows` has the definition."""

    min_context: int  # committed tokens that the drafter needs to offer something
    cached_layers: int  # layers whose keys and values it stores for every position

    def start(self, position: Tensor) -> Proposal:
        """Proposal after the true prefix of each of `position [m]`; n is 1."""

    def extend(self, parent: Tensor, token: Tensor) -> Proposal:
        """Proposal after `token [m, n]`, children of rows `parent [m, n]` of the last step."""


class ParallelFactory(Protocol):
    """A class of parallel forms: (drafter, sequence) -> the drafter's parallel form."""

    min_context: int

    def __call__(self, drafter: Any, sequence: TargetPass, /) -> ParallelDrafter: ...


class ParallelLanguageModel:
    """Any drafter that is a separate language model, `drafter.lm`."""

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


@dataclass(frozen=True)
class PaperRecipe:
    """How the authors of a drafter trained it, in place of a recipe for minutes of training.

    The rate is as printed for models of billions of weights; it does not follow the width.
    """

    source: str  # where the figures are printed
    soft: bool  # whether the loss is towards the target's distribution
    settings: Mapping[str, object]  # of the draft head and the loss
    rate: float | None = None  # peak learning rate; None: not printed, and the recipe's own
    # betas, decay, clip: of AdamW, its weight decay, and the largest norm of the gradient
    betas: tuple[float, float] = (0.9, 0.999)
    decay: float = 0.0
    clip: float = 1.0
    warmup: float = 0.02  # share of the steps in which the rate rises
    batch: int = 0  # sequences a step there, for the record
    # what the source does not print; the values here are then defaults
    silent: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingRecipe:
    """How the weights of one kind of drafter are trained."""

    # (target, **settings) -> nn.Module with an attribute settings: what is trained
    head: Callable[..., nn.Module]
    # (head, target, TrainingBatch, soft, generator, **settings) -> scalar
    loss: Callable[..., Tensor]
    drafter: Callable[[Decoder, Any], Drafter]  # (target, head) -> Drafter
    file: str  # its weights are <file>.safetensors
    soft: bool  # whether the loss is towards the target's distribution by default
    rate: float = 3e-3  # peak learning rate
    # (head, soft) -> names of the features (read_target) that the loss asks for
    reads: Callable[[Any, bool], tuple[str, ...]] = lambda head, soft: ()
    # settings without a default, or better ones for minutes of training
    defaults: Mapping[str, object] = field(default_factory=dict)
    paper: PaperRecipe | None = None  # the authors' own recipe; None: none is printed


@dataclass(frozen=True)
class DrafterKind:
    """All that the project knows of one kind of drafter: `KIND` of its file in `real.drafters`."""

    drafter: type[Drafter]
    # (folder, target, `real.model.stored_weights.made_for` of it) -> Drafter
    load: Callable[[Path, Decoder, Mapping[str, str]], Drafter]
    recipe: TrainingRecipe | None = None  # how it is trained; None: it has no weights to train
    parallel: ParallelFactory | None = None  # None: recorded position by position

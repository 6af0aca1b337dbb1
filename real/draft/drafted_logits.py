"""Logits over the tokens that a drafter drafts from, without the columns of the others."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.model.draft_vocabulary import DraftVocabularyHead


@dataclass(frozen=True)
class DraftedLogits:
    """Logits over what a drafter drafts from; those of all other tokens are -inf.

    | field | meaning |
    | --- | --- |
    | logits `[..., N]`, vocab | of these tokens; tokens of the whole vocabulary |
    | token int64 `[N]` | the tokens, ascending; None: all of them, or nearly |
    """

    logits: Tensor
    vocab: int
    token: Tensor | None

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

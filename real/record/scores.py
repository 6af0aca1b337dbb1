"""Scores of a rule at many positions of one sequence."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from real.sampling import Rule, gumbel, margin

CACHED_BYTES = 1 << 21
"""Of float64 scores that are read several times: what a core's cache holds."""


class SequenceScores:
    """`Rule.scores` at the first `positions` positions; noise is drawn once, on the device."""

    def __init__(self, rule: Rule, sequence: int, positions: int):
        self.rule, self.sequence, self.positions = rule, sequence, positions
        self.noise: torch.Tensor | None = None

    def __call__(self, drafted: "DraftedLogits", position: torch.Tensor) -> torch.Tensor:
        """Float64 scores `[n, N]` of logits that predict `position [n]`."""
        logits = drafted.logits
        if self.rule.name != "coupled":  # no noise, so no positions
            return self.rule.scores(logits, self.sequence, [])
        if self.noise is None:
            vocab, device = drafted.vocab, logits.device
            self.noise = gumbel(self.rule.seed, self.sequence, 0, self.positions, vocab, device)
        scores = self.rule.processed(logits)
        if drafted.token is None:
            scores += self.noise[position]
        else:
            scores += self.noise[position[:, None], drafted.token]
        return scores


@dataclass(frozen=True)
class DraftedLogits:
    """Logits over what a drafter drafts from: columns of -inf alone are left out.

    | field | meaning |
    | --- | --- |
    | logits `[n, N]`, vocab | of these tokens; tokens of the whole vocabulary |
    | token int64 `[N]` | the tokens, ascending; None: all of them, or nearly |
    """

    logits: torch.Tensor
    vocab: int
    token: torch.Tensor | None

    @classmethod
    def of(cls, logits: torch.Tensor) -> "DraftedLogits":
        """Of logits `[n, vocab]`."""
        vocab = logits.shape[-1]
        token = (logits != -torch.inf).any(0).nonzero()[:, 0]
        if not 2 <= len(token) <= vocab // 2:
            return cls(logits, vocab, None)
        return cls(logits[:, token], vocab, token)

    def rows(self, part: slice) -> "DraftedLogits":
        """Some rows."""
        return DraftedLogits(self.logits[part], self.vocab, self.token)

    def picks(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The best token `[n]`, and its margin float64 `[n]`."""
        best = scores.argmax(-1)
        return (best if self.token is None else self.token[best]), margin(scores)

    def place(self, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The column of each of `token [n]`, and whether it has one."""
        if self.token is None:
            return token, torch.ones_like(token, dtype=torch.bool)
        column = torch.searchsorted(self.token, token).clamp(max=len(self.token) - 1)
        return column, self.token[column] == token

    def rank(self, scores: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        """Rank of each of `token [n]` in the scores of the whole vocabulary, as `rank_of`."""
        if self.token is None:
            return rank_of(scores, token)
        column, inside = self.place(token)
        score = scores.gather(-1, column[:, None]).where(inside[:, None], -torch.inf)
        above, earlier = scores > score, self.token < token[:, None]
        tied = ((scores == score) & earlier).sum(-1)
        left_out = token - earlier.sum(-1)  # tokens before it that have no column: -inf as well
        return above.sum(-1) + tied + left_out.where(score[:, 0] == -torch.inf, 0)


def rank_of(scores: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """Rank of each of `token [n]` in `scores [n, vocab]`; ties go to the smaller index."""
    score = scores.gather(-1, token[:, None])
    index = torch.arange(scores.shape[-1], device=scores.device)
    return ((scores > score) | ((scores == score) & (index < token[:, None]))).sum(-1)


def row_chunks(rows: int, vocab: int, device: torch.device) -> Iterator[slice]:
    """Slices of `rows` rows, whose float64 scores fit into a CPU's cache; all at once on a GPU."""
    size = rows if device.type != "cpu" else max(1, CACHED_BYTES // (8 * vocab))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))

"""Scores of a rule at many positions of one sequence."""

from collections.abc import Iterator

import torch

from real.draft.drafted_logits import DraftedLogits
from real.sampling import Rule, gumbel, margin

CACHED_BYTES = 1 << 21
"""Of float64 scores that are read several times: what a core's cache holds."""


class SequenceScores:
    """`Rule.ranking` at the first `positions` positions; noise is drawn once, on the device."""

    def __init__(self, rule: Rule, sequence: int, positions: int):
        self.rule, self.sequence, self.positions = rule, sequence, positions
        self.noise: torch.Tensor | None = None

    def __call__(self, drafted: DraftedLogits, position: torch.Tensor) -> torch.Tensor:
        """Float64 scores `[n, N]` of logits that predict `position [n]`."""
        logits = drafted.logits
        if self.rule.name != "coupled":  # no noise, so no positions
            return self.rule.ranking(logits, self.sequence, [])
        if self.noise is None:
            vocab, device = drafted.vocab, logits.device
            self.noise = gumbel(self.rule.seed, self.sequence, 0, self.positions, vocab, device)
        scores = self.rule.processed(logits)
        if drafted.token is None:
            scores += self.noise[position]
        else:
            scores += self.noise[position[:, None], drafted.token]
        return scores


def picks(drafted: DraftedLogits, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The best token `[n]` of scores `[n, N]`, and its margin float64 `[n]`."""
    return drafted.tokens(scores.argmax(-1)), margin(scores)


def row_chunks(rows: int, vocab: int, device: torch.device) -> Iterator[slice]:
    """Slices of `rows` rows, whose float64 scores fit into a CPU's cache; all at once on a GPU."""
    size = rows if device.type != "cpu" else max(1, CACHED_BYTES // (8 * vocab))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))

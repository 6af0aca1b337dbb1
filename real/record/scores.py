"""Scores of a rule at many positions of one sequence."""

from collections.abc import Iterator

import torch

from real.sampling import Rule, gumbel

CACHED_BYTES = 1 << 21
"""Of float64 scores that are read several times: what a core's cache holds."""


class SequenceScores:
    """`Rule.scores` at the first `positions` positions; noise is drawn once, on the device."""

    def __init__(self, rule: Rule, sequence: int, positions: int):
        self.rule, self.sequence, self.positions = rule, sequence, positions
        self.noise: torch.Tensor | None = None

    def __call__(self, logits: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Float64 scores `[n, vocab]` of logits `[n, vocab]` that predict `position [n]`."""
        if self.rule.name != "coupled":  # no noise, so no positions
            return self.rule.scores(logits, self.sequence, [])
        if self.noise is None:
            vocab, device = logits.shape[-1], logits.device
            self.noise = gumbel(self.rule.seed, self.sequence, 0, self.positions, vocab, device)
        scores = self.rule.processed(logits)
        scores += self.noise[position]
        return scores


def row_chunks(rows: int, vocab: int, device: torch.device) -> Iterator[slice]:
    """Slices of `rows` rows, whose float64 scores fit into a CPU's cache; all at once on a GPU."""
    size = rows if device.type != "cpu" else max(1, CACHED_BYTES // (8 * vocab))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))

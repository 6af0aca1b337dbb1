"""Scores of a rule at many positions of one sequence."""

import torch

from real.sampling import Rule, gumbel


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
        return self.rule.processed(logits) + self.noise[position]

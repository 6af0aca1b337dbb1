"""What recorders of several drafters share of one sequence: the target's pass and the noise."""

from real.model.decoder import Decoder
from real.model.full_pass import TargetPass
from real.record.scores import SequenceScores
from real.sampling import Rule


class SharedPass:
    """The pass and the scores that were asked for last, computed once while the sequence is the
    same."""

    def __init__(self) -> None:
        self.key: tuple | None = None
        self.scored: tuple | None = None
        self.sequence_scores = SequenceScores(Rule(), 0, 0)

    def target_pass(self, target: Decoder, prompt: list[int], tokens: list[int]) -> TargetPass:
        """The target's pass over a prompt and its new tokens."""
        key = id(target), prompt, tokens
        if key != self.key:
            self.full, self.key = TargetPass(target, prompt, tokens), key
        return self.full

    def scores(self, rule: Rule, sequence: int, positions: int) -> SequenceScores:
        """The scores at the first `positions` positions of a sequence."""
        scored = rule, sequence
        if scored != self.scored or positions > self.sequence_scores.positions:
            self.sequence_scores = SequenceScores(rule, sequence, positions)
            self.scored = scored
        return self.sequence_scores

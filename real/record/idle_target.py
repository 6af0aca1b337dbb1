"""A target that computes nothing, for drafters that read tokens alone."""

import torch

from real.model.decoder import Decoder
from real.model.target import TargetOutput


class IdleTarget:
    """Answers every pass with empty output."""

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        self.empty = TargetOutput(None, torch.zeros(1, 1), {})

    def prefill(self, tokens: list[int]) -> TargetOutput:
        return self.empty

    def verify(self, tokens: list[int], parent: list[int], resume_from=None) -> TargetOutput:
        return self.empty

    def commit(self, path: list[int]) -> None:
        """Does nothing: there are no rows to keep."""

"""Suffix decoding: proposes the likeliest continuation of the text's own repeated suffixes."""

import numpy as np

from real.draft import DrafterKind
from real.draft.protocol import CopyingDrafter
from simspec.engines.ngram import SuffixRule, suffix_draft


class SuffixDrafter(CopyingDrafter):
    """Drafts by `simspec.engines.ngram`, whose rule vLLM's proposer of simspec shares.

    The settings are those of `SuffixRule`. ValueError for invalid settings.
    """

    name = "suffix"

    def __init__(self, depth: int = 24, factor: float = 1.0, least: float = 0.1, most: int = 24):
        self.settings = {"depth": depth, "factor": factor, "least": least, "most": most}
        self.rule = SuffixRule(depth, factor, least, most)

    def _found(self, sequence: np.ndarray) -> np.ndarray:
        return suffix_draft(sequence, self.rule).token


KIND = DrafterKind(SuffixDrafter, SuffixDrafter.load)

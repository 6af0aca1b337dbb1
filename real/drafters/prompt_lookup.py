"""Prompt lookup: proposes what followed the same n-gram earlier in the sequence."""

from dataclasses import replace
from typing import Literal

import numpy as np

from real.draft import DrafterKind
from real.draft.protocol import CopyingDrafter
from simspec.engines.ngram import RULES, drafts


class PromptLookupDrafter(CopyingDrafter):
    """Finds an earlier occurrence of the longest suffix, proposes what followed it.

    | setting | meaning |
    | --- | --- |
    | ngram_max, ngram_min | lengths of suffixes tried, longest first |
    | match | the "first" occurrence, or the "last" one before the suffix itself |

    Offers end with the sequence; occurrences may overlap the suffix. transformers 5 searches
    "first" with lengths 1 to 2 by default, vLLM "first" with 5. ValueError for other settings, and
    lengths that no `NgramRule` has.
    """

    name = "prompt_lookup"

    def __init__(
        self, ngram_max: int = 3, ngram_min: int = 1, match: Literal["first", "last"] = "first"
    ):
        if match not in ("first", "last"):
            raise ValueError(f"match is {match!r}; expected 'first' or 'last'")
        self.settings = {"ngram_max": ngram_max, "ngram_min": ngram_min, "match": match}
        self.rule = replace(RULES[self.name], least=ngram_min, most=ngram_max, match=match)

    def _found(self, sequence: np.ndarray) -> np.ndarray:
        return drafts(sequence, len(sequence), len(sequence), self.rule)


KIND = DrafterKind(PromptLookupDrafter, PromptLookupDrafter.load)

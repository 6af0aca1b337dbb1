"""Prompt lookup: proposes what followed the same n-gram earlier in the sequence."""

from real.draft import DrafterKind, Pick, Step
from real.draft.protocol import ConfiguredDrafter


class PromptLookupDrafter(ConfiguredDrafter):
    """Finds an earlier occurrence of the longest suffix, proposes what followed it.

    | setting | meaning |
    | --- | --- |
    | ngram_max, ngram_min | lengths of suffixes tried, longest first |
    | match | the "first" occurrence, or the "last" one before the suffix itself |

    Offers end with the sequence; occurrences may overlap the suffix. transformers 5 searches
    "first" with lengths 1 to 2 by default, vLLM "first" with 5. One search a round, in a table that
    grows with each committed token. A chain drafted one token later comes from a longer suffix, so
    not `prefix_only`. ValueError for other settings than 1 <= ngram_min <= ngram_max.
    """

    name = "prompt_lookup"
    prefix_only = False
    history_free = True
    tokens_only = True

    def __init__(self, ngram_max: int = 3, ngram_min: int = 1, match: str = "first"):
        if (
            type(ngram_min) is not int
            or type(ngram_max) is not int
            or not 1 <= ngram_min <= ngram_max
        ):
            raise ValueError(
                f"ngram_min is {ngram_min!r} and ngram_max {ngram_max!r}; "
                "expected integers, 1 <= ngram_min <= ngram_max"
            )
        if match not in ("first", "last"):
            raise ValueError(f"match is {match!r}; expected 'first' or 'last'")
        self.settings = {"ngram_max": ngram_max, "ngram_min": ngram_min, "match": match}
        self.sizes, self.match = range(ngram_max, ngram_min - 1, -1), match

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.sequence: list[int] = []
        self.follows: dict[tuple[int, ...], int] = {}
        self.drafted = 0
        self._read(prompt)

    def next(self) -> Step | None:
        if not self.drafted:
            self.source = self._find()
        if self.source is None or self.source + self.drafted >= len(self.sequence):
            return None
        token = self.sequence[self.source + self.drafted]
        self.drafted += 1
        return Step(token, self.drafted - 1, None)

    def rollback(self, accepted: int) -> None:
        self.drafted = 0

    def catch_up(self, tokens: list[int], output, path) -> None:
        self._read(tokens)

    def _read(self, tokens: list[int]) -> None:
        """Appends tokens one by one; each continues the n-grams that end in front of it."""
        for token in tokens:
            for gram in self._suffixes():
                if self.match == "last" or gram not in self.follows:
                    self.follows[gram] = len(self.sequence)
            self.sequence.append(token)

    def _find(self) -> int | None:
        """Start of the continuation of the longest suffix that occurred before."""
        return next((self.follows[gram] for gram in self._suffixes() if gram in self.follows), None)

    def _suffixes(self):
        return (tuple(self.sequence[-n:]) for n in self.sizes if n <= len(self.sequence))


KIND = DrafterKind(PromptLookupDrafter, PromptLookupDrafter.load)

"""Prompt lookup: what followed the same tokens before, in the prompt or in the text so far."""

import json
from collections.abc import Mapping
from pathlib import Path

from real.draft import Drafter, Pick, Step
from real.model.checkpoint import WeightsError
from real.model.decoder import Decoder


class PromptLookupDrafter(Drafter):
    """Looks up the longest suffix of the text, `ngram_max` down to `ngram_min` tokens, among what came before; proposes what followed.

    Of several occurrences of that suffix `match` takes the "first" or the "last" (the one before the suffix itself). The offer goes on
    to the text's end; occurrences may overlap the suffix. transformers 5 searches as "first" with `ngram_min` 1 and `ngram_max` 2 by
    default, vLLM as "first" with 5 and 5; "last" is neither. One search a round, in a table that grows with each committed token.

    It has no logits, so no features. A chain drafted one token later comes from a longer suffix, so not `prefix_only`.
    ValueError for n-gram sizes other than 1 <= ngram_min <= ngram_max, or another `match`.
    """

    name = "prompt_lookup"
    taps = ()
    prefix_only = False
    history_free = True
    has_logits = False

    def __init__(self, ngram_max: int = 3, ngram_min: int = 1, match: str = "first"):
        if (
            type(ngram_min) is not int
            or type(ngram_max) is not int
            or not 1 <= ngram_min <= ngram_max
        ):
            raise ValueError(
                f"ngram_min is {ngram_min!r} and ngram_max {ngram_max!r}; expected integers, 1 <= ngram_min <= ngram_max"
            )
        if match not in ("first", "last"):
            raise ValueError(f"match is {match!r}; expected 'first' or 'last'")
        self.settings = {"ngram_max": ngram_max, "ngram_min": ngram_min, "match": match}
        self.sizes, self.match = range(ngram_max, ngram_min - 1, -1), match
        self.predictors = {}

    @classmethod
    def load(
        cls, folder: Path, target: Decoder, made_for: Mapping[str, str]
    ) -> "PromptLookupDrafter":
        """With the "settings" of a prompt_lookup.json in `folder`, or the defaults where there is none; it fits any target."""
        file = Path(folder) / "prompt_lookup.json"
        if not file.exists():
            return cls()
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8"))["settings"])
        except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise WeightsError(
                f"{file} holds no settings of prompt lookup: {' '.join(str(error).split())[:300]}"
            ) from error

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.text: list[int] = []
        self.follows: dict[tuple[int, ...], int] = {}
        self.drafted = 0
        self._read(prompt)

    def next(self) -> Step | None:
        if not self.drafted:
            self.source = self._find()
        if self.source is None or self.source + self.drafted >= len(self.text):
            return None
        token = self.text[self.source + self.drafted]
        self.drafted += 1
        return Step(token, self.drafted - 1, None)

    def resume(self) -> None:
        return None

    def rollback(self, accepted: int) -> None:
        self.drafted = 0

    def catch_up(self, tokens: list[int], output, path) -> None:
        self._read(tokens)

    def _read(self, tokens: list[int]) -> None:
        """Appends tokens one by one; the n-grams that end in front of each are then followed by something."""
        for token in tokens:
            at = len(self.text)
            for gram in self._suffixes():
                if self.match == "last" or gram not in self.follows:
                    self.follows[gram] = at
            self.text.append(token)

    def _find(self) -> int | None:
        """Where the continuation of the longest suffix that came before starts."""
        return next((self.follows[gram] for gram in self._suffixes() if gram in self.follows), None)

    def _suffixes(self):
        return (tuple(self.text[-n:]) for n in self.sizes if n <= len(self.text))

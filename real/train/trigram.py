"""The baseline drafter: a table of the most frequent token after each pair of tokens."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from real.draft import Drafter, Pick, Step

MAX_TOKENS = 50_000_000
"""Tokens that are counted at most."""


@dataclass(frozen=True)
class TrigramTable:
    """Most frequent next tokens (ties: the smallest).

    | field | meaning |
    | --- | --- |
    | pair int64 `[P]` | pairs seen, as first * vocab + second, ascending |
    | after_pair int64 `[P]` | the token after each |
    | after int64 `[vocab]` | the token after each token; the commonest of all if none is |
    """

    pair: np.ndarray
    after_pair: np.ndarray
    after: np.ndarray

    def picks(self, before: np.ndarray, last: np.ndarray) -> np.ndarray:
        """The next token after each pair (before, last), int64 `[n]`.

        After `last` alone where the pair is new or before is -1.
        """
        last = np.asarray(last, np.int64)
        before = np.asarray(before, np.int64)
        code = np.where(before < 0, -1, before * len(self.after) + last)
        if not len(self.pair):
            return self.after[last]
        place = np.searchsorted(self.pair, code).clip(max=len(self.pair) - 1)
        return np.where(self.pair[place] == code, self.after_pair[place], self.after[last])

    def hits(self, prompt: list[int], new_tokens: np.ndarray) -> np.ndarray:
        """Whether the pick after the true prefix is the next of `new_tokens`, bool `[n]`."""
        last = np.concatenate(([-1], prompt, new_tokens[:-1])).astype(np.int64)
        return self.picks(last[:-1], last[1:])[len(prompt) - 1 :] == new_tokens


def count_trigrams(
    batches: Iterable[np.ndarray], vocab: int, most: int = MAX_TOKENS
) -> TrigramTable:
    """Counts n-grams within rows of `[rows, n]` batches, up to `most` tokens; ValueError for none.

    Ties go to the smallest token.
    """
    pairs, singles, tokens, left = [], [], [], most
    for rows in batches:
        if left <= 0:
            break
        rows = np.atleast_2d(rows)
        rows = rows[:, :left] if len(rows) == 1 else rows[: -(-left // rows.shape[1])]
        rows = rows.astype(np.int64)
        left -= rows.size
        single = rows[:, :-1] * vocab + rows[:, 1:]
        pairs.append((single[:, :-1] * vocab + rows[:, 2:]).ravel())
        singles.append(single.ravel())
        tokens.append(np.bincount(rows.ravel(), minlength=vocab))
    if not tokens:
        raise ValueError("no tokens to count; expected at least one row of them")
    pair, after_pair = _commonest(np.concatenate(pairs), vocab)
    seen, following = _commonest(np.concatenate(singles), vocab)
    after = np.full(vocab, np.sum(tokens, axis=0).argmax(), np.int64)
    after[seen] = following
    return TrigramTable(pair, after_pair, after)


def _commonest(code: np.ndarray, vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """Ascending keys of codes key * vocab + token, and the most frequent token of each."""
    if not len(code):
        return code, code
    code, times = np.unique(code, return_counts=True)
    key = code // vocab
    starts = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    highest = np.repeat(np.maximum.reduceat(times, starts), np.diff(np.r_[starts, len(key)]))
    top = np.flatnonzero(times == highest)
    first = np.r_[True, key[top][1:] != key[top][:-1]]
    return key[top][first], code[top][first] % vocab


class TrigramDrafter(Drafter):
    """Drafts by one look-up a token."""

    name = "trigram"
    prefix_only = True
    history_free = True
    has_logits = False

    def __init__(self, table: TrigramTable):
        self.table = table
        self.predictors = {}

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.committed = [-1, *prompt][-2:]
        self.draft: list[int] = []

    def next(self) -> Step:
        before, last = [*self.committed, *self.draft][-2:]
        self.draft.append(int(self.table.picks(np.array([before]), np.array([last]))[0]))
        return Step(self.draft[-1], len(self.draft) - 1, None)

    def rollback(self, accepted: int) -> None:
        self.draft = []

    def catch_up(self, tokens: list[int], output, path) -> None:
        self.committed = [*self.committed, *tokens][-2:]

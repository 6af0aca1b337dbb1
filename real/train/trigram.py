"""The drafter to beat: what most often followed the last two tokens in the text that another drafter learnt from."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from real.draft import Drafter, Pick, Step

MOST = 50_000_000


@dataclass(frozen=True)
class Table:
    """Most frequent next tokens, of equals the smallest.

    | field | meaning |
    | --- | --- |
    | pair int64 `[P]` | pairs that were seen, as first * vocab + second, ascending |
    | after_pair int64 `[P]` | what follows them |
    | after int64 `[vocab]` | what follows each token, the commonest token of all where it was never followed |
    """

    pair: np.ndarray
    after_pair: np.ndarray
    after: np.ndarray

    def picks(self, before: np.ndarray, last: np.ndarray) -> np.ndarray:
        """The next token behind each pair (before, last), int64 `[n]`; behind `last` alone where the pair is new or before is -1."""
        last = np.asarray(last, np.int64)
        code = np.where(
            np.asarray(before) < 0, -1, np.asarray(before, np.int64) * len(self.after) + last
        )
        at = np.searchsorted(self.pair, code).clip(max=max(0, len(self.pair) - 1))
        known = self.pair[at] == code if len(self.pair) else np.zeros(code.shape, bool)
        return np.where(known, self.after_pair[at] if len(self.pair) else 0, self.after[last])

    def hits(self, prompt: list[int], text: np.ndarray) -> np.ndarray:
        """Where on a text the pick behind the true prefix is the text's own token, bool `[n]`."""
        last = np.concatenate(([-1], prompt, text[:-1])).astype(np.int64)
        return self.picks(last[:-1], last[1:])[len(prompt) - 1 :] == text


def count(texts: Iterable[np.ndarray], vocab: int, most: int = MOST) -> Table:
    """The table of rows of tokens `[rows, n]`, n-grams within rows only, from the first `most` tokens; ValueError for none."""
    pairs, singles, tokens, left = [], [], [], most
    for rows in texts:
        if left <= 0:
            break
        rows = np.atleast_2d(rows)
        rows = (rows[:, :left] if len(rows) == 1 else rows[: -(-left // rows.shape[1])]).astype(
            np.int64
        )
        left -= rows.size
        single = rows[:, :-1] * vocab + rows[:, 1:]
        pairs.append((single[:, :-1] * vocab + rows[:, 2:]).ravel())
        singles.append(single.ravel())
        tokens.append(np.bincount(rows.ravel(), minlength=vocab))
    if not tokens:
        raise ValueError("no text to count; expected at least one row of tokens")
    pair, after_pair = _commonest(np.concatenate(pairs), vocab)
    seen, following = _commonest(np.concatenate(singles), vocab)
    after = np.full(vocab, sum(tokens).argmax(), np.int64)
    after[seen] = following
    return Table(pair, after_pair, after)


def _commonest(code: np.ndarray, vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """Of codes key * vocab + token: the keys, ascending, and the most frequent token of each."""
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
    """Drafts by a table, one look-up a token."""

    name = "trigram"
    taps = ()
    prefix_only = True
    history_free = True
    has_logits = False

    def __init__(self, table: Table):
        self.table = table
        self.predictors = {}

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.text, self.draft = [-1, *prompt][-2:], []

    def next(self) -> Step:
        before, last = [*self.text, *self.draft][-2:]
        self.draft.append(int(self.table.picks(np.array([before]), np.array([last]))[0]))
        return Step(self.draft[-1], len(self.draft) - 1, None)

    def resume(self) -> None:
        return None

    def rollback(self, accepted: int) -> None:
        self.draft = []

    def catch_up(self, tokens: list[int], output, path) -> None:
        self.text = [*self.text, *tokens][-2:]

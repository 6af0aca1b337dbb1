"""Evaluation of drafters: accepted lengths along held-out texts, beside a table of trigrams."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from real.draft import Drafter
from real.drafters import BUILTIN, parallel_form
from real.model.decoder import Decoder
from real.model.target import Target
from real.record import Settings
from real.record.rows import hidden_states, record_parallel, record_stepwise
from real.sampling import Rule
from real.train.data import Continuation, K, TrainingData
from simspec.numerics.stats import MIN_PROMPTS, bootstrap, difference, quotient, stacked
from simspec.trace.acceptance import repeated_ngrams


@dataclass(frozen=True)
class AcceptedLengths:
    """Greedy drafts of K from every position of some sequences."""

    K: int  # draft length
    # per sequence int64 [n]: leading draft tokens that are the target's
    accepted: tuple[np.ndarray, ...]
    offered: tuple[np.ndarray, ...]  # per sequence int64 [n]: drafted tokens, fewer at the end

    def by_depth(self) -> list[float | None]:
        """n-alpha: share accepted at depth j, of drafts accepted up to j - 1 that offer j.

        None for a depth without any.
        """
        accepted, offered = np.concatenate(self.accepted), np.concatenate(self.offered)
        shares: list[float | None] = []
        for depth in range(1, self.K + 1):
            eligible = (accepted >= depth - 1) & (offered >= depth)
            share = (accepted[eligible] >= depth).mean() if eligible.any() else None
            shares.append(None if share is None else round(float(share), 4))
        return shares

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """Per sequence float64: accepted tokens, and drafts, of positions with K tokens ahead."""
        cut = [row[: max(0, len(row) - self.K + 1)] for row in self.accepted]
        return np.array([float(c.sum()) for c in cut]), np.array([float(len(c)) for c in cut])

    def by_sequence(self) -> dict[str, list[int]]:
        """`sums` as integers, for a card: drafters are compared sequence by sequence.

        `tested`: drafted tokens whose predecessors were all accepted, so that accepted / tested is
        the chance that one is.
        """
        accepted, drafts = self.sums()
        tested = [
            int(np.minimum(a + 1, o)[: max(0, len(a) - self.K + 1)].sum())
            for a, o in zip(self.accepted, self.offered)
        ]
        return {
            "accepted": accepted.astype(int).tolist(),
            "drafts": drafts.astype(int).tolist(),
            "tested": tested,
        }

    def mean(self) -> float:
        """Mean accepted length of a draft of K; 0 where no sequence is as long."""
        accepted, drafts = self.sums()
        return float(accepted.sum() / max(1.0, drafts.sum()))


@torch.inference_mode()
def accepted_lengths(
    target: Decoder, drafter: Drafter, sequences: Sequence[Continuation], K: int
) -> AcceptedLengths:
    """Drafts greedily from every position, K deep or to the first miss.

    Equal to the accepted lengths that `real.record.rows` records. A language model of the
    prefix takes one pass a sequence, a drafter with a parallel form one pass and K steps; others go
    through the protocol position by position.
    """
    lm = drafter.lm if drafter.prefix_only else None
    if lm is not None:
        rows = [_one_pass(lm, *sequence, K) for sequence in sequences]
    else:
        rows = [_recorded(target, drafter, *sequence, K) for sequence in sequences]
    accepted, offered = zip(*rows)
    return AcceptedLengths(K, accepted, offered)


def lengths_of_hits(hit: np.ndarray, K: int) -> tuple[np.ndarray, np.ndarray]:
    """Accepted and offered lengths from `hit [n]`: whether each pick after the prefix is right."""
    n = len(hit)
    ahead = np.arange(n)[:, None] + np.arange(K)
    accepted = np.cumprod(hit[np.minimum(ahead, n - 1)] & (ahead < n), 1).sum(1)
    return accepted.astype(np.int64), np.minimum(K, n - np.arange(n))


def _one_pass(lm: Decoder, prompt: list[int], new_tokens: np.ndarray, K: int):
    picks = lm.logits(hidden_states(lm, prompt, new_tokens)).argmax(-1)
    return lengths_of_hits(picks.cpu().numpy() == new_tokens, K)


def _recorded(
    decoder: Decoder, drafter: Drafter, prompt: list[int], new_tokens: np.ndarray, K: int
):
    n = len(new_tokens)
    settings = Settings(K, n, Rule(), (), ())
    recorder = record_stepwise if parallel_form(drafter) is None else record_parallel
    target = Target(decoder, drafter.taps, len(prompt) + n + K + 1)
    recorded = recorder(target, drafter, settings, prompt, new_tokens, 0)
    accepted, ahead = recorded.run.astype(np.int64), np.minimum(K, n - np.arange(n))
    # a draft that is accepted as far as it is offered ends there
    return accepted, np.where(accepted == recorded.depth, np.minimum(accepted, ahead), ahead)


def summary(lengths: AcceptedLengths) -> dict:
    """Mean accepted length with its interval, and acceptance by depth, for a card."""
    return {
        "accepted_length": _interval(quotient, lengths.mean(), *lengths.sums()),
        "by_depth": lengths.by_depth(),
    }


def compare(a: AcceptedLengths, b: AcceptedLengths) -> dict:
    """Difference of mean accepted length a - b on the same sequences, with its 95% interval.

    "longer" is whether the interval lies above 0.
    """
    gain = _interval(difference, a.mean() - b.mean(), *a.sums(), *b.sums())
    return gain | {"longer": None if gain["low"] is None else gain["low"] > 0}


def _interval(statistic, value: float, *columns: np.ndarray) -> dict:
    """95% over sequences that are long enough; without bounds for fewer than `MIN_PROMPTS`."""
    rows = [c[columns[1] > 0] for c in columns]
    found = {"value": round(value, 4), "low": None, "high": None, "texts": len(rows[0])}
    if len(rows[0]) >= MIN_PROMPTS:
        interval = bootstrap(stacked(*rows), statistic)
        found |= {"low": round(interval.low, 4), "high": round(interval.high, 4)}
    return found


MAX_TOKENS = 50_000_000
"""Tokens that are counted at most."""


@dataclass(frozen=True)
class TrigramTable:
    """Most frequent next tokens (ties: the smallest)."""

    pair: np.ndarray  # int64 [P]: pairs seen, as first * vocab + second, ascending
    after_pair: np.ndarray  # int64 [P]: the token after each
    after: np.ndarray  # int64 [vocab]: the token after each token; the commonest of all if none is

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


def evaluate_drafter(drafter: str, folder: Path, data: TrainingData) -> AcceptedLengths:
    """Accepted lengths of a drafter as it was saved, at its longest offer if that is below K."""
    loaded = BUILTIN[drafter].load(folder, data.target, data.made_for)
    return accepted_lengths(data.target, loaded, data.evaluation, loaded.longest(K))


def evaluation_size(data: TrainingData) -> dict:
    """K, sequences, tokens and repetition of an evaluation, for a card."""
    sequences = [new_tokens for _, new_tokens in data.evaluation]
    return {
        "K": K,
        "texts": len(sequences),
        "tokens": sum(map(len, sequences)),
        "repeated_8grams": round(repeated_ngrams(sequences), 4),
    }


def card_lines(card: dict) -> list[str]:
    """A drafter's card as lines of text."""
    evaluation = card["evaluation"]
    lengths = {name: value for name, value in evaluation.items() if isinstance(value, dict)}
    lines = [
        f"accepted length at K = {evaluation['K']}, {evaluation['texts']} held-out texts: "
        f"{_with_interval(lengths['trained']['accepted_length'])}"
    ]
    for name in ("untrained", "trigram"):
        if name in lengths:
            lines.append(f"  {name} {_with_interval(lengths[name]['accepted_length'])}")
    for name in ("untrained", "trigram"):
        if (key := f"beats_{name}") in lengths:
            lines.append(f"  longer than {name} by {_with_interval(lengths[key])}")
    if replay := card.get("replay"):
        search = card["search"]
        lines.append(
            f"  speedup {search['score']:.2f} promised by the search at K = {search['k']}, "
            f"{_with_interval(replay)} in its replay; both priced by measured seconds"
        )
    if vocabulary := card.get("draft_vocabulary"):
        lines.append(
            f"  draft vocabulary of {vocabulary['tokens']:,} tokens, "
            f"{vocabulary['coverage']:.1%} of the held-out tokens inside"
        )
    shares = ("-" if share is None else f"{share:.3f}" for share in lengths["trained"]["by_depth"])
    return [*lines, f"  by depth {', '.join(shares)}"]


def _with_interval(figure: dict) -> str:
    interval = f" [{figure['low']:.3f}, {figure['high']:.3f}]" if figure["low"] is not None else ""
    return f"{figure['value']:.3f}{interval}"

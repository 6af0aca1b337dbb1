"""Accepted lengths of a drafter along sequences, and acceptance of drafts that skip sub-layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real.decode.loop import along, start
from real.draft import Drafter
from real.drafters import parallel_form
from real.drafters.self_skip import SkipConfig, skipping_pass
from real.model.decoder import Decoder
from real.model.kv_cache import KVCache
from real.model.target import Target
from real.record import Settings
from real.record.rows import hidden_states, record_parallel
from real.sampling import Rule
from simspec.numerics.stats import MIN_PROMPTS, ratio, ratio_difference

Continuation = tuple[list[int], np.ndarray]
"""A prompt, and the new tokens that the target generated after it greedily."""


@dataclass(frozen=True)
class AcceptedLengths:
    """Greedy drafts of K from every position of some sequences.

    | field | meaning |
    | --- | --- |
    | K | draft length |
    | accepted | per sequence int64 `[n]`: leading draft tokens that are the target's |
    | offered | per sequence int64 `[n]`: drafted tokens, fewer at the end |
    """

    K: int
    accepted: tuple[np.ndarray, ...]
    offered: tuple[np.ndarray, ...]

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

    def upto(self, K: int) -> "AcceptedLengths":
        """The same drafts cut to at most `K` tokens."""
        accepted = tuple(np.minimum(row, K) for row in self.accepted)
        offered = tuple(np.minimum(row, K) for row in self.offered)
        return AcceptedLengths(min(K, self.K), accepted, offered)

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
    elif parallel_form(drafter) is not None:
        rows = [_in_parallel(target, drafter, *sequence, K) for sequence in sequences]
    else:
        rows = [_by_position(target, drafter, *sequence, K) for sequence in sequences]
    accepted, offered = zip(*rows)
    return AcceptedLengths(K, accepted, offered)


@torch.inference_mode()
def longest_offer(
    target: Decoder, drafter: Drafter, sequences: Sequence[Continuation], K: int
) -> int:
    """The longest draft, at most K, offered after any of the prompts; K where none is offered."""
    longest = 0
    for prompt, _ in sequences:
        engine, length = Target(target, drafter.taps, len(prompt) + K + 1), 0
        start(engine, drafter, prompt)
        while longest < K and drafter.next() is not None:
            length += 1
            longest = max(longest, length)
    return longest or K


def lengths_of_hits(hit: np.ndarray, K: int) -> tuple[np.ndarray, np.ndarray]:
    """Accepted and offered lengths from `hit [n]`: whether each pick after the prefix is right."""
    n = len(hit)
    ahead = np.arange(n)[:, None] + np.arange(K)
    accepted = np.cumprod(hit[np.minimum(ahead, n - 1)] & (ahead < n), 1).sum(1)
    return accepted.astype(np.int64), np.minimum(K, n - np.arange(n))


def _one_pass(lm: Decoder, prompt: list[int], new_tokens: np.ndarray, K: int):
    picks = lm.logits(hidden_states(lm, prompt, new_tokens, 0)).argmax(-1)
    return lengths_of_hits(picks.cpu().numpy() == new_tokens, K)


def _in_parallel(
    decoder: Decoder, drafter: Drafter, prompt: list[int], new_tokens: np.ndarray, K: int
):
    n = len(new_tokens)
    settings = Settings(K, n, Rule(), (), ())
    recorded = record_parallel(Target(decoder), drafter, settings, prompt, new_tokens, 0)
    accepted, ahead = recorded.run.astype(np.int64), np.minimum(K, n - np.arange(n))
    # a draft that is accepted as far as it is offered ends there
    return accepted, np.where(accepted == recorded.depth, np.minimum(accepted, ahead), ahead)


def _by_position(
    decoder: Decoder, drafter: Drafter, prompt: list[int], new_tokens: np.ndarray, K: int
):
    wanted, n = new_tokens.tolist(), len(new_tokens)
    accepted, offered = np.zeros(n, np.int64), np.minimum(K, n - np.arange(n))
    target = Target(decoder, drafter.taps, len(prompt) + n + K + 1)
    for t, _, _ in along(target, drafter, prompt, wanted):
        while accepted[t] < offered[t]:
            step = drafter.next()
            if step is None:
                offered[t] = accepted[t]
            elif step.token == wanted[t + accepted[t]]:
                accepted[t] += 1
            else:
                break
    return accepted, offered


def summary(lengths: AcceptedLengths) -> dict:
    """Mean accepted length with its interval, and acceptance by depth, for a card."""
    return {
        "accepted_length": _interval(ratio, lengths.mean(), *lengths.sums()),
        "by_depth": lengths.by_depth(),
    }


def compare(a: AcceptedLengths, b: AcceptedLengths) -> dict:
    """Difference of mean accepted length a - b on the same sequences, with its 95% interval.

    "longer" is whether the interval lies above 0. ValueError for other sequences or another K.
    """
    if a.K != b.K or [len(r) for r in a.accepted] != [len(r) for r in b.accepted]:
        raise ValueError(
            f"{len(a.accepted)} texts at K = {a.K} against {len(b.accepted)} at {b.K}; "
            "expected the same texts and K"
        )
    difference = _interval(ratio_difference, a.mean() - b.mean(), *a.sums(), *b.sums())
    low = difference["low"]
    return difference | {"longer": None if low is None else low > 0}


def _interval(statistic, value: float, *columns: np.ndarray) -> dict:
    """95% over sequences that are long enough; without bounds for fewer than `MIN_PROMPTS`."""
    rows = [c[columns[1] > 0] for c in columns]
    if len(rows[0]) < MIN_PROMPTS:
        return {"value": round(value, 4), "low": None, "high": None, "texts": len(rows[0])}
    interval = statistic(*rows)
    return {
        "value": round(value, 4),
        "low": round(interval.low, 4),
        "high": round(interval.high, 4),
        "texts": interval.prompts,
    }


TokenPair = tuple[Sequence[int], Sequence[int]]
"""A prompt, and the new tokens that the target generated after it."""


@dataclass(frozen=True)
class PreparedSequence:
    """The rows of a sequence that first draft tokens are proposed from, after one full pass.

    | field | meaning |
    | --- | --- |
    | token, position `[n]` | of the rows |
    | mask `[n, m + n]` | the cached rows of the full pass that each attends to, and itself |
    | cache, start | the full pass's KV cache, and where draft rows begin in it |
    | pick `[n]` | the target's own tokens there |
    """

    token: Tensor
    position: Tensor
    mask: Tensor
    cache: KVCache
    start: int
    pick: Tensor


@torch.inference_mode()
def prepare(decoder: Decoder, prompt: Sequence[int], new_tokens: Sequence[int]) -> PreparedSequence:
    """One full pass over a sequence, with room after it for a draft row per new token."""
    device, rows, count = decoder.device, len(prompt) + len(new_tokens) - 1, len(new_tokens)
    token = torch.tensor([*prompt, *new_tokens[:-1]], device=device)
    place = torch.arange(rows, device=device)
    cache = decoder.cache(capacity=rows + count)
    causal = torch.ones(rows, rows, dtype=torch.bool, device=device).tril()
    layers, rotation = range(len(decoder.layers)), decoder.rotation(place)
    x = decoder.run(decoder.embed(token[None]), layers, rotation, causal, cache, 0)
    before = place < place[-count:, None]  # a first draft row attends to the rows before its own
    mask = torch.cat((before, torch.eye(count, dtype=torch.bool, device=device)), 1)
    pick = decoder.logits(x[0, -count:]).argmax(-1)
    return PreparedSequence(token[-count:], place[-count:], mask, cache, rows, pick)


def acceptance(decoder: Decoder, skips: SkipConfig, sequences: Sequence[TokenPair]) -> float:
    """Share of positions where the first draft token is the target's pick (greedy).

    Equal to what the drafter proposes first in a round there, since the cache is that of full
    passes. Later slots build on draft rows and are accepted less often.
    """
    return accepted_share(decoder, skips, prepared(decoder, sequences))


def prepared(decoder: Decoder, sequences: Sequence[TokenPair]) -> list[PreparedSequence]:
    """All sequences prepared; ValueError for none, or one with an empty part."""
    if not len(sequences):
        raise ValueError("no texts; expected pairs (prompt, new tokens), one token each at least")
    for i, (prompt, new_tokens) in enumerate(sequences):
        if not len(prompt) or not len(new_tokens):
            raise ValueError(
                f"text {i} has an empty prompt or no new tokens; "
                "expected pairs (prompt, new tokens), one token each at least"
            )
    return [prepare(decoder, *pair) for pair in sequences]


@torch.inference_mode()
def accepted_share(
    decoder: Decoder, skips: SkipConfig, sequences: Sequence[PreparedSequence]
) -> float:
    """`acceptance` of prepared sequences."""
    hits = 0
    for s in sequences:
        hidden = skipping_pass(decoder, skips, s.token, s.position, s.mask, s.cache, s.start)
        hits += int((decoder.logits(hidden).argmax(-1) == s.pick).sum())
    return hits / sum(len(s.token) for s in sequences)


def sublayer_share(decoder: Decoder, skips: SkipConfig) -> float:
    """Cost c of a draft step as its share of the target's sub-layers: the same on every device."""
    return skips.count(len(decoder.layers)) / (2 * len(decoder.layers))


def weight_share(decoder: Decoder, skips: SkipConfig) -> float:
    """Cost c of a draft step as its share of the weights that are read, the head included.

    It approximates the share of time where memory bandwidth limits passes.
    """
    layers: Any = decoder.layers
    attention = [
        sum(p.numel() for m in (x.query, x.key, x.value, x.output) for p in m.parameters())
        for x in layers
    ]
    mlp = [sum(m.weight.numel() for m in (x.gate, x.up, x.down)) for x in layers]
    whole = sum(attention) + sum(mlp) + decoder.head.weight.numel()
    skipped = sum(attention[i] for i in skips.attention) + sum(mlp[i] for i in skips.mlp)
    return (whole - skipped) / whole

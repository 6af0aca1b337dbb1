"""How much of the target's own text a drafter would have drafted: accepted lengths, acceptance by depth, and paired comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from real.decode.along import along, start
from real.draft import Drafter
from real.model.decoder import Decoder
from real.model.target import Target
from real.record.hidden_states import hidden_states
from simspec.stats import MIN_PROMPTS, ratio, ratio_difference

Text = tuple[list[int], np.ndarray]
"""A prompt, and what the target wrote after it greedily."""


@dataclass(frozen=True)
class Accepted:
    """Greedy drafts of K from every position of some texts.

    | field | meaning |
    | --- | --- |
    | K | tokens asked for |
    | run | per text int64 `[n]`: leading draft tokens that are the target's |
    | room | per text int64 `[n]`: how many could have been: K, what is left of the text, or where the drafter had no more to offer |
    """

    K: int
    run: tuple[np.ndarray, ...]
    room: tuple[np.ndarray, ...]

    def by_depth(self) -> list[float | None]:
        """n-alpha: of the drafts whose first j - 1 tokens held and that had room for j, the share whose j-th held; None without any."""
        run, room = np.concatenate(self.run), np.concatenate(self.room)
        could = [(run >= j - 1) & (room >= j) for j in range(1, self.K + 1)]
        return [
            round(float((run[c] >= j).mean()), 4) if c.any() else None
            for j, c in enumerate(could, 1)
        ]

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """Per text: accepted tokens, and drafts, over the positions that have K tokens of text ahead; float64 `[texts]` each."""
        cut = [run[: max(0, len(run) - self.K + 1)] for run in self.run]
        return np.array([float(c.sum()) for c in cut]), np.array([float(len(c)) for c in cut])

    def upto(self, K: int) -> "Accepted":
        """The same drafts cut to at most `K` tokens."""
        cut = [tuple(np.minimum(each, K) for each in column) for column in (self.run, self.room)]
        return Accepted(min(K, self.K), *cut)

    def length(self) -> float:
        """Mean accepted length of a draft of K; 0 where no text is as long."""
        accepted, drafts = self.sums()
        return float(accepted.sum() / max(1.0, drafts.sum()))


@torch.inference_mode()
def acceptance(target: Decoder, drafter: Drafter, texts: Sequence[Text], K: int) -> Accepted:
    """Drafts greedily from every position of `texts`, K deep or to the first miss: the runs that `real.record.stepwise` would record.

    Drafters that are language models of the prefix take one pass a text, others go through the protocol position by position.
    """
    plain = drafter.prefix_only and drafter.lm is not None
    found = [
        _plain(drafter.lm, *text, K) if plain else _walked(target, drafter, *text, K)
        for text in texts
    ]
    return Accepted(K, *(tuple(column) for column in zip(*found)))


@torch.inference_mode()
def offers(target: Decoder, drafter: Drafter, texts: Sequence[Text], K: int) -> int:
    """The most tokens, at most K, that a draft behind any of the prompts gets to when nothing stops it; K where none offers any."""
    most = 0
    for prompt, _ in texts:
        engine, length = Target(target, drafter.taps, len(prompt) + K + 1), 0
        start(engine, drafter, prompt)
        while most < K and drafter.next() is not None:
            length += 1
            most = max(most, length)
    return most or K


def straight(hit: np.ndarray, K: int) -> tuple[np.ndarray, np.ndarray]:
    """Run and room of drafts from every position, where the pick behind each true prefix does or does not `hit [n]` the text."""
    n = len(hit)
    ahead = np.arange(n)[:, None] + np.arange(K)
    run = np.cumprod(hit[np.minimum(ahead, n - 1)] & (ahead < n), 1).sum(1)
    return run.astype(np.int64), np.minimum(K, n - np.arange(n))


def _plain(lm: Decoder, prompt: list[int], text: np.ndarray, K: int):
    return straight(
        lm.logits(hidden_states(lm, prompt, text, 0)).argmax(-1).cpu().numpy() == text, K
    )


def _walked(decoder: Decoder, drafter: Drafter, prompt: list[int], text: np.ndarray, K: int):
    wanted, n = text.tolist(), len(text)
    run, room = np.zeros(n, np.int64), np.minimum(K, n - np.arange(n))
    target = Target(decoder, drafter.taps, len(prompt) + n + K + 1)
    for t, _, _ in along(target, drafter, prompt, wanted):
        while run[t] < room[t]:
            step = drafter.next()
            if step is None:
                room[t] = run[t]
            elif step.token == wanted[t + run[t]]:
                run[t] += 1
            else:
                break
    return run, room


def described(found: Accepted) -> dict:
    """Mean accepted length with its interval over texts, and acceptance by depth, for a card."""
    accepted, drafts = found.sums()
    return {
        "accepted_length": _interval(ratio, found.length(), accepted, drafts),
        "by_depth": found.by_depth(),
    }


def compare(a: Accepted, b: Accepted) -> dict:
    """How much longer `a` is accepted than `b` on the same texts: the difference, its 95% interval, and whether that lies above 0."""
    if a.K != b.K or [len(r) for r in a.run] != [len(r) for r in b.run]:
        raise ValueError(
            f"{len(a.run)} texts at K = {a.K} against {len(b.run)} at {b.K}; expected the same texts and K"
        )
    found = _interval(ratio_difference, a.length() - b.length(), *a.sums(), *b.sums())
    return found | {"longer": None if found["low"] is None else found["low"] > 0}


def _interval(figure, value: float, *columns: np.ndarray) -> dict:
    """95% over texts that are long enough; without bounds where they are fewer than 8."""
    kept = [c[columns[1] > 0] for c in columns]
    if len(kept[0]) < MIN_PROMPTS:
        return {"value": round(value, 4), "low": None, "high": None, "texts": len(kept[0])}
    made = figure(*kept)
    return {
        "value": round(value, 4),
        "low": round(made.low, 4),
        "high": round(made.high, 4),
        "texts": made.prompts,
    }

"""The rows of one recorded text, and what was asked of a recording."""

from dataclasses import dataclass

import numpy as np
import torch

from real.decode.features import coded
from real.sampling import Rule, gumbel
from simspec.quantization import encode_margin
from simspec.tree import MAX_RANKS

MOST = 255
"""The largest code of a rank and of a margin: that or more."""


class RecordError(ValueError):
    """A recording that cannot be made or continued as asked."""


@dataclass(frozen=True)
class Rows:
    """The recorded rows of one text of n tokens (fields as in `simspec.Trace`)."""

    token: np.ndarray
    depth: np.ndarray
    run: np.ndarray
    feature: np.ndarray
    rank: np.ndarray | None = None
    margin: np.ndarray | None = None
    draft_margin: np.ndarray | None = None
    feature_margin: np.ndarray | None = None
    ratio: np.ndarray | None = None
    order: np.ndarray | None = None
    beam: np.ndarray | None = None


@dataclass(frozen=True)
class Settings:
    """What to record: draft depth, tokens a text, rule, end tokens and feature names; width and levels of dynamic trees, or ()."""

    K: int
    budget: int
    rule: Rule
    end_tokens: tuple[int, ...]
    features: tuple[str, ...] = ("confidence", "entropy")
    tree: tuple[int, int] | tuple[()] = ()

    def __post_init__(self):
        if self.rule.sampled and self.features:
            raise RecordError(
                "a recording of the rejection rule holds no features, it replays in law alone; expected none to be asked for"
            )
        if self.rule.sampled and self.tree:
            raise RecordError(
                "a recording of the rejection rule holds no order of trees; expected rule greedy or coupled with --tree"
            )
        if not 1 <= self.K <= 255 or self.budget < 1:
            raise RecordError(
                f"K is {self.K} and budget {self.budget}; expected 1 <= K <= 255 and at least one token"
            )
        if self.tree != () and not (
            type(self.tree) is tuple
            and [*map(type, self.tree)] == [int, int]
            and 1 <= self.tree[0] <= MAX_RANKS
            and 1 <= self.tree[1] <= self.K
        ):
            raise RecordError(
                f"tree is {self.tree!r}; expected a width from 1 to {MAX_RANKS} and levels from 1 to K, here {self.K}, or ()"
            )


class Scores:
    """`Rule.scores` at the first `positions` positions of one text: noise is drawn once, and stays on the device."""

    def __init__(self, rule: Rule, sequence: int, positions: int):
        self.rule, self.sequence, self.positions = rule, sequence, positions
        self.noise: torch.Tensor | None = None

    def __call__(self, logits: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Float64 scores `[n, vocab]` of logits `[n, vocab]` that predict the positions `position [n]`."""
        if self.rule.name != "coupled":
            return self.rule.scores(logits, self.sequence, position)
        if self.noise is None:
            self.noise = gumbel(
                self.rule.seed, self.sequence, 0, self.positions, logits.shape[-1], logits.device
            )
        return self.rule.processed(logits) + self.noise[position]


def finished(
    settings: Settings,
    text: np.ndarray,
    offers: np.ndarray,
    chain: np.ndarray,
    gap: np.ndarray,
    value: np.ndarray,
    rank: np.ndarray,
) -> Rows:
    """Rows of a text from drafts that did not stop: cut where the budget ends, behind an end token, and at `offers [n]` tokens.

    `chain int64 [n, K]`, the margins `gap float64 [n, K]`, the features' values `float64 [n, K, F]`, and ranks along the text `[n, K]`.
    """
    (n, K), every, names = chain.shape, np.arange(len(chain)), settings.features
    reach = np.minimum(K, settings.budget - every)
    most = np.minimum(reach, offers)
    ends = np.isin(chain, settings.end_tokens) & (np.arange(K) < most[:, None])
    depth = np.where(ends.any(1), ends.argmax(1) + 1, np.where(offers < reach, offers, K)).astype(
        np.uint8
    )
    live = np.arange(K) < np.minimum(depth, reach)[:, None]
    there = every[:, None] + np.arange(K) < n
    place = np.where(np.arange(K) < offers[:, None], np.minimum(rank, MOST), MOST)
    feature, edge = np.zeros((n, K, len(names)), np.uint8), np.zeros((n, K), np.uint8)
    near = np.zeros((n, K), np.uint8)
    near[live] = encode_margin(gap[live])
    if names and live.any():
        feature[live], distance = coded(names, value[live])
        edge[live] = encode_margin(distance.min(-1))
    run = runs(np.where(live, chain, -1), text, depth)
    return Rows(
        text,
        depth,
        run,
        feature,
        np.where(there, place, 0).astype(np.uint8),
        np.zeros(n, np.uint8),
        near,
        edge,
    )


def rank_of(scores: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """How many of `scores [n, vocab]` stand before those of `token [n]`; of equals the smaller index stands first."""
    own = scores.gather(-1, token[:, None])
    index = torch.arange(scores.shape[-1], device=scores.device)
    return ((scores > own) | ((scores == own) & (index < token[:, None]))).sum(-1)


def runs(chain: np.ndarray, text: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Leading tokens of each row of `chain [n, K]` that equal the text from there, at most `depth` and what is left."""
    n, K = chain.shape
    ahead = np.arange(n)[:, None] + np.arange(K)
    hit = (ahead < n) & (chain == text[np.minimum(ahead, n - 1)]) & (np.arange(K) < depth[:, None])
    return np.cumprod(hit, 1).sum(1).astype(np.uint8)

"""The rows of one recorded text, and what was asked of a recording."""

from dataclasses import dataclass

import numpy as np
import torch

from real.sampling import Rule
from simspec.tree import WIDEST


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
            raise RecordError("a recording of the rejection rule holds no features, it replays in law alone; expected none to be asked for")
        if self.rule.sampled and self.tree:
            raise RecordError("a recording of the rejection rule holds no order of trees; expected rule greedy or coupled with --tree")
        if not 1 <= self.K <= 255 or self.budget < 1:
            raise RecordError(f"K is {self.K} and budget {self.budget}; expected 1 <= K <= 255 and at least one token")
        if self.tree != () and not (
            type(self.tree) is tuple
            and [*map(type, self.tree)] == [int, int]
            and 1 <= self.tree[0] <= WIDEST
            and 1 <= self.tree[1] <= self.K
        ):
            raise RecordError(f"tree is {self.tree!r}; expected a width from 1 to {WIDEST} and levels from 1 to K, here {self.K}, or ()")


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

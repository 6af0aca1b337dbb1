"""Which token a model picks: the largest logit, or the largest logit plus noise that belongs to the text position.

Both sides of a verification use one rule, so a draft token is accepted exactly if it equals the target's pick, and
the text that comes out is the target's own, whatever the drafter and the policy do.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from simspec import rng


@dataclass(frozen=True)
class Rule:
    """How a token is picked from logits.

    | field | meaning |
    | --- | --- |
    | name | "greedy": no noise; "coupled": argmax(log p + g), g Gumbel noise keyed by (seed, sequence, position) |
    | temperature | divides the logits before noise is added and before features are read; 1.0 where greedy |
    | seed | of the noise |

    The coupled pick is distributed as softmax(logits / temperature), and a drafter's pick with the same noise agrees
    with it as often as two such draws can by this means (a little below the rejection rule's Σ min(p, q)).
    """

    name: str = "greedy"
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self):
        if self.name not in ("greedy", "coupled"):
            raise ValueError(f"rule {self.name!r} is unknown; expected 'greedy' or 'coupled'")
        if not 0 < self.temperature < float("inf") or (self.name == "greedy" and self.temperature != 1.0):
            raise ValueError(f"temperature {self.temperature} with rule {self.name!r}; expected > 0, and 1.0 for greedy")

    def scores(self, logits: Tensor, sequence: int, position: list[int]) -> Tensor:
        """Float64 scores `[n, vocab]` of logits `[n, vocab]` that predict the text positions `position [n]`."""
        wide = logits.double()
        if self.name == "greedy":
            return wide
        noise = torch.stack([_noise(self.seed, sequence, p, wide.shape[-1]) for p in position])
        return wide / self.temperature + noise.to(wide.device)


@lru_cache(maxsize=128)
def _noise(seed: int, sequence: int, position: int, vocab: int) -> Tensor:
    # a position is scored by the drafter and by the target, often more than once: draw its noise once
    return torch.from_numpy(rng.gumbel(seed, sequence, position, vocab))


def forget_noise() -> None:
    """Drops noise already drawn: a run that is timed must draw its own, as it would if no other had come before."""
    _noise.cache_clear()


def margin(scores: Tensor) -> Tensor:
    """Best minus second score of each row, float64 `[n]`: how far a pick is from flipping."""
    best = scores.topk(2, -1).values
    return best[..., 0] - best[..., 1]

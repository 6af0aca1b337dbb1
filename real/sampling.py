"""Which token a model picks: the largest logit, or the largest logit plus noise that belongs to the text position.

Both sides of a verification use one rule, so a draft token is accepted exactly if it equals the target's pick, and
the text that comes out is the target's own, whatever the drafter and the policy do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from simspec import rng
from simspec.rng import ACCEPT, uniform

AHEAD = 32
_LOW = 0xFFFFFFFF
_M0, _M1, _W0, _W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85


@dataclass(frozen=True)
class Rule:
    """How a token is picked from logits.

    | field | meaning |
    | --- | --- |
    | name | "greedy": no noise; "coupled": argmax(log p + g), g Gumbel noise keyed by (seed, sequence, position); "rejection": drawn, and \
drafts accepted with min(1, p / q) |
    | temperature | divides the logits before anything else; 1.0 where greedy |
    | seed | of the noise, or of the draws |
    | top_k | only that many best tokens can be picked; 0: all |
    | top_p | then only the fewest best tokens that hold this share of what is left, in (0, 1] |

    The coupled pick is distributed as `probs`, and a drafter's pick with the same noise agrees with it as often as two such draws can
    by this means (a little below the rejection rule's Σ min(p, q)). Target and drafter are processed alike.
    """

    name: str = "greedy"
    temperature: float = 1.0
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        if self.name not in ("greedy", "coupled", "rejection"):
            raise ValueError(
                f"rule {self.name!r} is unknown; expected 'greedy', 'coupled' or 'rejection'"
            )
        if not 0 < self.temperature < float("inf") or (
            self.name == "greedy" and self.temperature != 1.0
        ):
            raise ValueError(
                f"temperature {self.temperature} with rule {self.name!r}; expected > 0, and 1.0 for greedy"
            )
        if type(self.top_k) is not int or self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k!r}; expected an integer, 0 for all tokens")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; expected a share in (0, 1], 1 for all tokens")
        if self.name == "greedy" and (self.top_k or self.top_p < 1):
            raise ValueError(
                "top_k and top_p change nothing in greedy text; expected rule 'coupled' or 'rejection' with them"
            )

    @property
    def sampled(self) -> bool:
        """Whether drafts are drawn and judged by coins, so that only the law of the text is the target's, not each text."""
        return self.name == "rejection"

    def probs(self, logits: Tensor) -> Tensor:
        """The distribution float64 `[n, vocab]` that logits `[n, vocab]` stand for: temperature, then top-k, then top-p, renormalised."""
        return self.processed(logits).softmax(-1)

    def scores(self, logits: Tensor, sequence: int, position: list[int]) -> Tensor:
        """Float64 scores `[n, vocab]` of logits `[n, vocab]` that predict the text positions `position [n]`: the best is picked."""
        if self.sampled:
            raise ValueError(
                "the rejection rule picks by coins, not by scores; expected rule 'greedy' or 'coupled'"
            )
        if self.name == "greedy":
            return logits.double()
        wide = self.processed(logits)
        return wide + noise(self.seed, sequence, position, wide.shape[-1], wide.device)

    def processed(self, logits: Tensor) -> Tensor:
        """Float64 logits `[n, vocab]` at the rule's temperature, -inf where top-k or top-p leave a token out."""
        wide = logits.double() / self.temperature
        if not self.top_k and self.top_p == 1:
            return wide
        best = wide.sort(
            dim=-1, descending=True, stable=True
        )  # of equals the smaller index comes first, as everywhere
        out = torch.zeros_like(wide, dtype=torch.bool)
        if self.top_k:
            out[..., self.top_k :] = True
        share = best.values.masked_fill(out, -torch.inf).softmax(-1)
        out |= share.cumsum(-1) - share >= self.top_p
        out[..., 0] = False
        return wide.masked_fill(torch.zeros_like(out).scatter(-1, best.indices, out), -torch.inf)


def noise(seed: int, sequence: int, position: Sequence[int], vocab: int, device) -> Tensor:
    """Gumbel noise float64 `[n, vocab]` of the text positions `position [n]`; on a card it is drawn there, for AHEAD positions at once."""
    if torch.device(device).type == "cpu":
        return torch.stack([_noise(seed, sequence, p, vocab) for p in position])
    return torch.stack(
        [_ahead(seed, sequence, p // AHEAD, vocab, str(device))[p % AHEAD] for p in position]
    )


@lru_cache(maxsize=8)
def _ahead(seed: int, sequence: int, block: int, vocab: int, device: str) -> Tensor:
    return gumbel(seed, sequence, AHEAD * block, AHEAD, vocab, device)


@lru_cache(maxsize=128)
def _noise(seed: int, sequence: int, position: int, vocab: int) -> Tensor:
    # a position is scored by the drafter and by the target, often more than once: draw its noise once
    return torch.from_numpy(rng.gumbel(seed, sequence, position, vocab))


def forget_noise() -> None:
    """Drops noise already drawn: a run that is timed must draw its own, as it would if no other had come before."""
    _noise.cache_clear()
    _ahead.cache_clear()


def margin(scores: Tensor) -> Tensor:
    """Best minus second score of each row, float64 `[n]`: how far a pick is from flipping."""
    best = scores.topk(2, -1).values
    return best[..., 0] - best[..., 1]


def gumbel(seed: int, sequence: int, first: int, count: int, vocab: int, device) -> Tensor:
    """Noise float64 `[count, vocab]` of the text positions `first` .. `first + count - 1`: `simspec.rng.gumbel` of each.

    Drawn by `rng` on the CPU. On a card the same uniforms are drawn there, bit for bit; the logarithms are the card's and may differ from
    the host's in the last place. ValueError outside the ranges of `rng.gumbel`.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return torch.from_numpy(
            rng.gumbel_rows(seed, sequence, torch.arange(first, first + count).numpy(), vocab)
        )
    (
        rng.gumbel(seed, sequence, first, 1),
        rng.gumbel(seed, sequence, first + count - 1, vocab and 1),
    )  # refuses what is out of range
    return -(-uniforms(seed, sequence, first, count, vocab, device).log()).log()


def uniforms(seed: int, sequence: int, first: int, count: int, vocab: int, device) -> Tensor:
    """The uniforms float64 `[count, vocab]` in (0, 1) behind `gumbel`: Philox-4x32-10 in int64, whose products wrap as unsigned ones do."""
    quarters = -(-vocab // 4)
    wide = {"dtype": torch.int64, "device": device}
    c0, c3 = torch.full((1, 1), sequence, **wide), torch.full((1, 1), rng.GUMBEL, **wide)
    c1, c2 = (
        torch.arange(first, first + count, **wide)[:, None],
        torch.arange(quarters, **wide)[None],
    )
    k0, k1 = seed & _LOW, seed >> 32
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (
            (p1 >> 32 & _LOW) ^ c1 ^ k0,
            p1 & _LOW,
            (p0 >> 32 & _LOW) ^ c3 ^ k1,
            p0 & _LOW,
        )
        k0, k1 = k0 + _W0 & _LOW, k1 + _W1 & _LOW
    words = torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), -1).view(count, 4 * quarters)
    return (words[:, :vocab].double() + 0.5) * 2.0**-32


class AddressedDraws:
    """Draws addressed by (seed, sequence, round, slot, role): not by text position, where a policy could see what it discarded.

    `slot` of a coin is the row that it judges, of a draw the row that the drawn token follows.
    """

    def __init__(self, seed: int, sequence: int):
        self.seed, self.sequence = seed, sequence

    def accept(self, odds: float, round: int, slot: int) -> bool:
        """True with probability `odds`."""
        return uniform(self.seed, self.sequence, round, slot, ACCEPT) < odds

    def sample(self, p: Tensor, round: int, slot: int, role: int) -> int:
        """A token drawn from the distribution `p [vocab]` (its sum need not be 1)."""
        return _at(p, uniform(self.seed, self.sequence, round, slot, role))


def _at(p: Tensor, u: float) -> int:
    """The token at which the running sum of `p` first exceeds the share `u` of it; never one of probability 0."""
    total = p.cumsum(-1)
    found = int(torch.searchsorted(total, u * total[-1], right=True))
    return min(found, int(p.nonzero()[-1]))

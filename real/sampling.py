"""How tokens are sampled: greedy, coupled by Gumbel noise, or drawn under the rejection rule.

Target and drafter use the same rule. Under a greedy or coupled rule a drafted token is accepted
exactly if it is the target's pick, so the committed sequence does not depend on drafter or
policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor

from simspec.numerics import rng
from simspec.numerics.rng import ACCEPT, uniform
from simspec.trace.file import SAMPLED

NOISE_BLOCK = 32
"""Positions whose noise is drawn at once on a GPU."""
_LOW = 0xFFFFFFFF
_M0, _M1, _W0, _W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85

MIN_TEMPERATURE = 1e-6
"""Limit from below: divided by less, logits overflow; --rule greedy is the limit of zero."""


@dataclass(frozen=True)
class Rule:
    """How a token is picked from logits; the same for target and drafter.

    | name | pick |
    | --- | --- |
    | greedy | argmax of the logits |
    | coupled | argmax(log p + g), g Gumbel noise addressed by (seed, sequence, position): \
distributed as `probs` |
    | rejection | drawn; a drafted token is accepted with probability min(1, p / q) |
    | block | drawn; drafted tokens are accepted together, see `real.decode.verify.block_sample` |

    Coupled picks of p and q agree almost as often as under the rejection rule, whose rate is Σ
    min(p, q).
    """

    name: str = "greedy"
    temperature: float = 1.0  # divides the logits first; 1.0 where greedy
    seed: int = 0  # of the noise, or of the draws
    top_k: int = 0  # only the k best tokens are candidates; 0: all
    top_p: float = 1.0  # then the fewest best with this share of the probability left, in (0, 1]

    def __post_init__(self):
        if self.name not in ("greedy", "coupled", *SAMPLED):
            raise ValueError(
                f"rule {self.name!r} is unknown; expected greedy, coupled, {' or '.join(SAMPLED)}"
            )
        if not MIN_TEMPERATURE <= self.temperature < float("inf") or (
            self.name == "greedy" and self.temperature != 1.0
        ):
            raise ValueError(
                f"temperature {self.temperature} with rule {self.name!r}; "
                f"expected at least {MIN_TEMPERATURE:g}, and 1.0 for greedy"
            )
        if type(self.top_k) is not int or self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k!r}; expected an integer, 0 for all tokens")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; expected a share in (0, 1], 1 for all tokens")
        if self.name == "greedy" and (self.top_k or self.top_p < 1):
            raise ValueError(
                "top_k and top_p change nothing under the greedy rule; "
                "expected rule 'coupled' or 'rejection' with them"
            )

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn: the output distribution is the target's, not each sequence."""
        return self.name in SAMPLED

    def probs(self, logits: Tensor) -> Tensor:
        """The processed distribution float64 `[n, vocab]` of logits `[n, vocab]`."""
        return self.processed(logits).softmax(-1)

    def scores(self, logits: Tensor, sequence: int, position: list[int]) -> Tensor:
        """Float64 scores `[n, vocab]` of logits `[n, vocab]` at the positions `position [n]`; the
        best token is picked."""
        if self.sampled:
            raise ValueError(
                "the rejection rule draws tokens and has no scores; "
                "expected rule 'greedy' or 'coupled'"
            )
        if self.name == "greedy":
            return logits.double()
        wide = self.processed(logits)
        return wide + gumbel_noise(self.seed, sequence, position, wide.shape[-1], wide.device)

    def ranking(self, logits: Tensor, sequence: int, position: list[int]) -> Tensor:
        """Float64 `[n, vocab]` by which a searched tree ranks a node's children.

        These are `scores`; under the rejection rule the logits, so that nothing is drawn.
        """
        return logits.double() if self.sampled else self.scores(logits, sequence, position)

    def processed(self, logits: Tensor) -> Tensor:
        """Float64 logits `[n, vocab]` at the rule's temperature, -inf for tokens cut by top-k or
        top-p."""
        wide = logits.to(torch.float64, copy=True)
        wide /= self.temperature
        if not self.top_k and self.top_p == 1:
            return wide
        best = wide.sort(dim=-1, descending=True, stable=True)  # ties go to the smaller token
        out = torch.zeros_like(wide, dtype=torch.bool)
        if self.top_k:
            out[..., self.top_k :] = True
        share = best.values.masked_fill(out, -torch.inf).softmax(-1)
        out |= share.cumsum(-1) - share >= self.top_p
        out[..., 0] = False
        return wide.masked_fill(torch.zeros_like(out).scatter(-1, best.indices, out), -torch.inf)


def gumbel_noise(seed: int, sequence: int, position: Sequence[int], vocab: int, device) -> Tensor:
    """Gumbel noise float64 `[n, vocab]` of the positions `position [n]`, cached."""
    if torch.device(device).type == "cpu":
        return torch.stack([_noise(seed, sequence, p, vocab) for p in position])
    return torch.stack(
        [
            _noise_block(seed, sequence, p // NOISE_BLOCK, vocab, str(device))[p % NOISE_BLOCK]
            for p in position
        ]
    )


@lru_cache(maxsize=8)
def _noise_block(seed: int, sequence: int, block: int, vocab: int, device: str) -> Tensor:
    first = NOISE_BLOCK * block
    return gumbel(seed, [sequence] * NOISE_BLOCK, range(first, first + NOISE_BLOCK), vocab, device)


@lru_cache(maxsize=128)
def _noise(seed: int, sequence: int, position: int, vocab: int) -> Tensor:
    # drafter and target both score a position, often more than once
    return torch.from_numpy(rng.gumbel(seed, sequence, position, vocab))


def clear_noise_cache() -> None:
    """Clears the cache of noise, so that a timed run draws its own."""
    _noise.cache_clear()
    _noise_block.cache_clear()


def margin(scores: Tensor) -> Tensor:
    """Best minus second score of each row, float64 `[n]`."""
    # two passes over the row are several times faster than topk
    best, place = scores.max(-1, keepdim=True)
    second = scores.scatter(-1, place, -torch.inf).amax(-1, keepdim=True)
    return (best - second)[..., 0]


def gumbel(
    seed: int, sequence: Sequence[int], position: Sequence[int], vocab: int, device
) -> Tensor:
    """Gumbel noise float64 `[n, vocab]` of n addresses (`sequence [n]`, `position [n]`), as
    `simspec.numerics.rng.gumbel`.

    On a GPU the uniforms are equal bit for bit; logarithms may differ from the host's in the
    last place. ValueError outside the ranges of `rng.gumbel`.
    """
    if torch.device(device).type == "cpu":
        runs = groupby(zip(sequence, position), key=itemgetter(0))
        rows = [rng.gumbel_rows(seed, s, np.array([t for _, t in run]), vocab) for s, run in runs]
        return torch.from_numpy(rows[0] if len(rows) == 1 else np.concatenate(rows))
    for s, t in zip(sequence, position):  # validates the ranges
        rng.gumbel(seed, s, t, 1)
    address = torch.tensor((list(sequence), list(position)), device=device)
    return -(-uniforms(seed, address[0], address[1], vocab).log()).log()


def uniforms(seed: int, sequence: Tensor, position: Tensor, vocab: int) -> Tensor:
    """Uniforms float64 `[n, vocab]` in (0, 1) of addresses int64 `[n]`, which become noise.

    Philox-4x32-10 in wrapping int64.
    """
    quarters = -(-vocab // 4)
    c2 = torch.arange(quarters, device=position.device)[None]
    c0, c1 = sequence[:, None], position[:, None]
    c3 = torch.full_like(c0[:1], rng.GUMBEL)
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
    words = torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), -1)
    words = words.view(len(position), 4 * quarters)
    return (words[:, :vocab].double() + 0.5) * 2.0**-32


class AddressedDraws:
    """Draws addressed by (seed, sequence, round, slot, role), independent of what was drafted
    before.

    `slot` is the tested row of an accept draw, and the parent row of a token draw.
    """

    def __init__(self, seed: int, sequence: int):
        self.seed, self.sequence = seed, sequence

    def accept(self, probability: float, round: int, slot: int) -> bool:
        """True with that probability."""
        return uniform(self.seed, self.sequence, round, slot, ACCEPT) < probability

    def sample(self, p: Tensor, round: int, slot: int, role: int) -> int:
        """A token drawn from the distribution `p [vocab]` (its sum need not be 1)."""
        u = uniform(self.seed, self.sequence, round, slot, role)
        return int(inverse_cdf(p[None], torch.tensor([u], dtype=torch.float64, device=p.device)))


def inverse_cdf(p: Tensor, u: Tensor) -> Tensor:
    """The first token of each row of `p [n, vocab]` at which its cumulative sum exceeds the share
    `u [n]`; its probability is not 0."""
    total = p.cumsum(-1)
    token = torch.searchsorted(total, u[:, None] * total[:, -1:], right=True)[:, 0]
    place = torch.arange(p.shape[-1], device=p.device)
    return torch.minimum(token, torch.where(p > 0, place, 0).amax(-1))

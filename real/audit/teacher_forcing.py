"""Teacher forcing: an emitted text through the target once more, and how far each of its tokens is from the target's own pick."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.sampling import Rule, margin
from simspec.rng import uniform

DRAW = 1 << 16
"""The role of the draws that place a token within its own probability: no engine draws there."""
TILTS = np.array([sign * 2.0**-i for i in range(1, 9) for sign in (1, -1)])
"""Other temperatures that a text is tried at, T / (1 - h)."""


@dataclass(frozen=True)
class Gaps:
    """How the tokens of a text stand to the target's picks.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | best | int64 `[n]` | the target's pick |
    | gap | float64 `[n]` | its score minus the emitted token's, nats; 0 where it was emitted, inf where the rule has cut that token off |
    | near | float64 `[n]` | the same at its least, had top-k and top-p cut up to `slack` nats otherwise; `gap` where they cut nothing |
    | ulps | float64 `[n]` | `near` as a difference of logits, in units in the last place of the larger one |
    | margin | float64 `[n]` | best minus second score |
    """

    best: np.ndarray
    gap: np.ndarray
    near: np.ndarray
    ulps: np.ndarray
    margin: np.ndarray


@dataclass(frozen=True)
class Odds:
    """How the tokens of a text stand to the target's distributions p.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | surprise | float64 `[n]` | -log p(token), nats; inf where p is 0 |
    | edge | bool `[n]` | p is 0, but for top-k or top-p cutting less than `slack` nats away |
    | entropy, variance, skew | float64 `[n]` | mean of -log p(y), y drawn from p, its variance and its third central moment |
    | place | float64 `[n]` | chance of a likelier token + w p(token), w uniform: uniform itself if the token is drawn from p |
    | tilt | float64 `[n, len(TILTS)]` | log of p_h(token) / p(token), p_h proportional to p^(1 - h) |
    """

    surprise: np.ndarray
    edge: np.ndarray
    entropy: np.ndarray
    variance: np.ndarray
    skew: np.ndarray
    place: np.ndarray
    tilt: np.ndarray


def logits_of(
    decoder: Decoder, prompt: tuple[int, ...], token: tuple[int, ...], rows: int = 64
) -> Iterator[tuple[int, Tensor]]:
    """(position, logits `[m, vocab]`) of the predictions of `token`, some rows at a time: one causal pass without a cache.

    So a fault of the caches that the text was made with is not made again. ValueError where a logit is NaN or infinite.
    """
    with torch.inference_mode():
        whole = torch.tensor([[*prompt, *token[:-1]]], device=decoder.device)
        rotation = decoder.rotation(torch.arange(whole.shape[1], device=decoder.device))
        hidden = decoder.run(decoder.embed(whole), range(len(decoder.layers)), rotation)[
            0, len(prompt) - 1 :
        ]
        for at in range(0, len(token), rows):
            logits = decoder.logits(hidden[at : at + rows])
            if not logits.isfinite().all():
                raise ValueError(
                    "the target's logits are not finite; expected numbers: its weights are damaged, or the dtype too narrow"
                )
            yield at, logits


@torch.inference_mode()
def gaps(
    rule: Rule,
    logits: Tensor,
    token: tuple[int, ...],
    sequence: int,
    position: int,
    dtype: torch.dtype,
    slack: float,
) -> Gaps:
    """Gaps of `token [n]` at text positions `position`, ... under a greedy or coupled rule, from logits `[n, vocab]`."""
    ids = torch.tensor(token, device=logits.device)[:, None]
    scores = rule.scores(logits, sequence, list(range(position, position + len(token))))
    best = scores.argmax(-1, keepdim=True)
    gap = torch.where(best == ids, 0.0, scores.gather(-1, best) - scores.gather(-1, ids))
    near = gap
    if rule.top_k or rule.top_p < 1:
        free = Rule(rule.name, rule.temperature, rule.seed).scores(
            logits, sequence, list(range(position, position + len(token)))
        )
        sure = free.masked_fill(~kept(rule, logits, -slack), -torch.inf).amax(-1, keepdim=True)
        near = (
            (sure - free.gather(-1, ids))
            .clamp(min=0)
            .masked_fill(~kept(rule, logits, slack).gather(-1, ids), torch.inf)
        )
        near = near.minimum(gap)
    unit = spacing(
        logits.double().gather(-1, torch.cat((best, ids), -1)).abs().amax(-1, keepdim=True), dtype
    )
    columns = best, gap, near, near * rule.temperature / unit
    return Gaps(*(c[:, 0].cpu().numpy() for c in columns), margin(scores).cpu().numpy())


@torch.inference_mode()
def odds(
    rule: Rule, logits: Tensor, token: tuple[int, ...], sequence: int, position: int, slack: float
) -> Odds:
    """Odds of `token [n]` under the rule's distributions at logits `[n, vocab]`."""
    ids = torch.tensor(token, device=logits.device)[:, None]
    p = rule.probs(logits)
    log = p.log()
    own = p.gather(-1, ids)
    edge = torch.zeros_like(ids, dtype=torch.bool)
    if rule.top_k or rule.top_p < 1:
        edge = (own == 0) & kept(rule, logits, slack).gather(-1, ids)
    entropy = torch.special.entr(p).sum(-1)
    away = torch.where(p > 0, -log - entropy[:, None], 0.0)
    moments = [(p * away**power).sum(-1) for power in (2, 3)]
    smaller = torch.arange(p.shape[-1], device=p.device) < ids
    ahead = torch.where((p > own) | ((p == own) & smaller), p, 0.0).sum(-1)
    drawn = [
        uniform(rule.seed, sequence, at, 0, DRAW) for at in range(position, position + len(token))
    ]
    place = ahead + own[:, 0] * torch.tensor(drawn, dtype=p.dtype, device=p.device)
    surprise = -log.gather(-1, ids)[:, 0]
    tilt = torch.stack([h * surprise - ((1 - h) * log).logsumexp(-1) for h in TILTS.tolist()], -1)
    columns = surprise, edge[:, 0], entropy, *moments, place.clamp(0, 1), tilt
    return Odds(*(c.cpu().numpy() for c in columns))


def kept(rule: Rule, logits: Tensor, slack: float) -> Tensor:
    """Which tokens top-k and top-p may keep if every score moves by `slack` / 2 in their favour; surely keep, where slack < 0."""
    wide = logits.double() / rule.temperature
    best = wide.sort(-1, descending=True)
    ahead = torch.searchsorted(-best.values, -best.values - slack)
    own = 1 if slack < 0 else 0  # a token is not ahead of itself
    cut = torch.zeros_like(wide, dtype=torch.bool)
    if rule.top_k:
        cut[..., rule.top_k :] = True
    share = best.values.masked_fill(cut, -torch.inf).softmax(-1)
    mass = (
        torch.cat((torch.zeros_like(share[..., :1]), share.cumsum(-1)), -1).gather(-1, ahead)
        - own * share
    )
    stays = mass < rule.top_p + slack if rule.top_p < 1 else torch.ones_like(cut)
    if rule.top_k:
        stays &= ahead - own < rule.top_k
    return torch.zeros_like(cut).scatter(-1, best.indices, stays)


def spacing(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The unit in the last place of `dtype` at the magnitude of x, 2^(e - 1) eps where |x| = m 2^e with m in [1/2, 1); float64."""
    wide = x.double()
    return torch.ldexp(
        torch.full_like(wide, torch.finfo(dtype).eps), torch.frexp(wide.abs())[1] - 1
    )

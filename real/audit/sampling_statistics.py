"""Statistics of emitted tokens under the target's distributions."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from real.audit.truncation import truncates, truncation_mask
from real.sampling import Rule
from simspec.numerics.rng import uniform

PIT = 1 << 16
"""The draw role of randomized probability integral transforms; no engine draws under it."""
TEMPERATURE_TILTS = np.array([sign * 2.0**-i for i in range(1, 9) for sign in (1, -1)])
"""Alternatives h of the temperature test: temperature T / (1 - h)."""


@dataclass(frozen=True)
class SamplingStatistics:
    """The emitted tokens under the target's distributions p.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | surprisal | float64 `[n]` | -log p(token), nats; inf where p is 0 |
    | at_cutoff | bool `[n]` | p is 0, but top-k or top-p off by `slack` nats would keep the token |
    | entropy | float64 `[n]` | mean of -log p(y), y drawn from p |
    | variance, third_moment | float64 `[n]` | central moments of -log p(y) |
    | pit | float64 `[n]` | randomized probability integral transform, uniform if token ~ p |
    | tilt | float64 `[n, len(TEMPERATURE_TILTS)]` | log p_h(token) / p(token), p_h ~ p^(1 - h) |
    """

    surprisal: np.ndarray
    at_cutoff: np.ndarray
    entropy: np.ndarray
    variance: np.ndarray
    third_moment: np.ndarray
    pit: np.ndarray
    tilt: np.ndarray


@torch.inference_mode()
def sampling_statistics(
    rule: Rule, logits: Tensor, token: tuple[int, ...], sequence: int, position: int, slack: float
) -> SamplingStatistics:
    """Statistics of `token [n]` at positions `position`, ... from logits `[n, vocab]`.

    pit = Σ p(y) over likelier y + w p(token), w uniform; ties go to the smaller index.
    """
    ids = torch.tensor(token, device=logits.device)[:, None]
    p = rule.probs(logits)
    log = p.log()
    p_token = p.gather(-1, ids)
    at_cutoff = torch.zeros_like(ids, dtype=torch.bool)
    if truncates(rule):
        at_cutoff = (p_token == 0) & truncation_mask(rule, logits, slack).gather(-1, ids)
    entropy = torch.special.entr(p).sum(-1)
    centered = torch.where(p > 0, -log - entropy[:, None], 0.0)
    moments = [(p * centered**power).sum(-1) for power in (2, 3)]
    smaller = torch.arange(p.shape[-1], device=p.device) < ids
    likelier = torch.where((p > p_token) | ((p == p_token) & smaller), p, 0.0).sum(-1)
    positions = range(position, position + len(token))
    draws = [uniform(rule.seed, sequence, at, 0, PIT) for at in positions]
    pit = likelier + p_token[:, 0] * torch.tensor(draws, dtype=p.dtype, device=p.device)
    surprisal = -log.gather(-1, ids)[:, 0]
    tilts = [h * surprisal - ((1 - h) * log).logsumexp(-1) for h in TEMPERATURE_TILTS.tolist()]
    columns = (
        surprisal,
        at_cutoff[:, 0],
        entropy,
        *moments,
        pit.clamp(0, 1),
        torch.stack(tilts, -1),
    )
    return SamplingStatistics(*(column.cpu().numpy() for column in columns))

"""Score gaps: how far each emitted token lies below the target's pick."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from real.audit.truncation import truncates, truncation_mask
from real.sampling import Rule, margin


@dataclass(frozen=True)
class ScoreGaps:
    """The emitted tokens against the target's picks, greedy or coupled.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | best | int64 `[n]` | the target's pick |
    | gap | float64 `[n]` | score of the pick minus the token's, nats; inf if removed |
    | least_gap | float64 `[n]` | smallest gap if top-k and top-p may be off by `slack` nats |
    | ulps | float64 `[n]` | `least_gap` in units in the last place of the larger logit |
    | margin | float64 `[n]` | best minus second-best score |
    """

    best: np.ndarray
    gap: np.ndarray
    least_gap: np.ndarray
    ulps: np.ndarray
    margin: np.ndarray


@torch.inference_mode()
def score_gaps(
    rule: Rule,
    logits: Tensor,
    token: tuple[int, ...],
    sequence: int,
    position: int,
    dtype: torch.dtype,
    slack: float,
) -> ScoreGaps:
    """Gaps of `token [n]` at positions `position`, ... from logits `[n, vocab]`."""
    ids = torch.tensor(token, device=logits.device)[:, None]
    positions = list(range(position, position + len(token)))
    scores = rule.scores(logits, sequence, positions)
    best = scores.argmax(-1, keepdim=True)
    gap = torch.where(best == ids, 0.0, scores.gather(-1, best) - scores.gather(-1, ids))
    least_gap = gap
    if truncates(rule):
        full = Rule(rule.name, rule.temperature, rule.seed).scores(logits, sequence, positions)
        certain = full.masked_fill(~truncation_mask(rule, logits, -slack), -torch.inf)
        possible = truncation_mask(rule, logits, slack).gather(-1, ids)
        least_gap = (certain.amax(-1, keepdim=True) - full.gather(-1, ids)).clamp(min=0)
        least_gap = least_gap.masked_fill(~possible, torch.inf).minimum(gap)
    larger = logits.double().gather(-1, torch.cat((best, ids), -1)).abs().amax(-1, keepdim=True)
    ulps = least_gap * rule.temperature / spacing(larger, dtype)
    columns = best[:, 0], gap[:, 0], least_gap[:, 0], ulps[:, 0], margin(scores)
    return ScoreGaps(*(column.cpu().numpy() for column in columns))


def spacing(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The unit in the last place of `dtype` at |x|, float64 (as `numpy.spacing`).

    2^(e - 1) eps where |x| = m 2^e, m in [1/2, 1).
    """
    x = x.double()
    return torch.ldexp(torch.full_like(x, torch.finfo(dtype).eps), torch.frexp(x.abs())[1] - 1)

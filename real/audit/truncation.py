"""Top-k and top-p truncation under rounding."""

import torch
from torch import Tensor

from real.sampling import Rule


def truncates(rule: Rule) -> bool:
    """Whether the rule removes tokens by top-k or top-p."""
    return bool(rule.top_k) or rule.top_p < 1


def truncation_mask(rule: Rule, logits: Tensor, slack: float) -> Tensor:
    """Bool `[n, vocab]`: tokens that top-k and top-p may keep if scores move by `slack` / 2 nats.

    With slack < 0: tokens that they keep whatever the rounding.
    """
    scores = logits.double() / rule.temperature
    ranked = scores.sort(-1, descending=True)
    ahead = torch.searchsorted(-ranked.values, -ranked.values - slack)
    itself = 1 if slack < 0 else 0  # a token is not ahead of itself
    removed = torch.zeros_like(scores, dtype=torch.bool)
    if rule.top_k:
        removed[..., rule.top_k :] = True
    share = ranked.values.masked_fill(removed, -torch.inf).softmax(-1)
    cumulative = torch.cat((torch.zeros_like(share[..., :1]), share.cumsum(-1)), -1)
    mass = cumulative.gather(-1, ahead) - itself * share
    kept = mass < rule.top_p + slack if rule.top_p < 1 else torch.ones_like(removed)
    if rule.top_k:
        kept &= ahead - itself < rule.top_k
    return torch.zeros_like(removed).scatter(-1, ranked.indices, kept)

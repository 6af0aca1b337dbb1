"""Bias of sampled tokens towards the drafter: the trace of a wrong acceptance or residual."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from real.audit.emitted_run import EmittedSequence
from real.audit.teacher_forcing import teacher_forced_logits
from real.decode.along import along
from real.draft import Drafter
from real.model.target import Target
from real.sampling import Rule

BIAS_TILTS = np.array([sign * 2.0**-i for i in range(2, 9) for sign in (1, -1)])
"""Alternatives h of the bias test: p (1 + h s), towards the drafter or away from it."""


@dataclass(frozen=True)
class DrafterBias:
    """The emitted tokens between target p and drafter q.

    r = (q - p) / (q + p) and s = r - Σ p r: p (1 + h s) is a distribution for |h| <= 1/4.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | score | float64 `[n]` | s(token); mean 0 under p |
    | variance | float64 `[n]` | Σ p s^2 |
    | drafter_mean, drafter_square | float64 `[n]` | Σ q s and Σ q s^2 |
    | tilt | float64 `[n, len(BIAS_TILTS)]` | log(1 + h s(token)) |
    """

    score: np.ndarray
    variance: np.ndarray
    drafter_mean: np.ndarray
    drafter_square: np.ndarray
    tilt: np.ndarray


@torch.inference_mode()
def drafter_bias(p: Tensor, q: Tensor, token: tuple[int, ...]) -> DrafterBias:
    """The bias of `token [n]`, given `p [n, vocab]` and `q [n, vocab]`."""
    r = ((q - p) / (q + p)).nan_to_num(0)  # 0 / 0 where both remove a token
    s = r - (p * r).sum(-1, keepdim=True)
    score = s.gather(-1, torch.tensor(token, device=p.device)[:, None])[:, 0]
    tilt = torch.log1p(score[:, None] * torch.from_numpy(BIAS_TILTS).to(score))
    square = s.square()
    columns = score, (p * square).sum(-1), (q * s).sum(-1), (q * square).sum(-1), tilt
    return DrafterBias(*(column.cpu().numpy() for column in columns))


@torch.inference_mode()
def drafter_distributions(
    target: Target, drafter: Drafter, rule: Rule, sequence: EmittedSequence
) -> Tensor | None:
    """The drafter's processed distribution before every token, float64 `[n, vocab]`.

    One pass for a language model of the token prefix; any other drafter drafts one token at each
    position. None for a drafter without logits.
    """
    prompt, token, device = sequence.prompt, sequence.token, target.decoder.device
    if not drafter.has_logits:
        return None
    if drafter.prefix_only and drafter.lm is not None:
        parts = teacher_forced_logits(drafter.lm, prompt, token)
        return torch.cat([rule.probs(logits).to(device) for _, logits in parts])
    rows = []
    for _ in along(target, drafter, prompt, token):
        step = drafter.next()
        if step is None or step.logits is None:
            return None
        rows.append(rule.probs(step.logits[None])[0].to(device))
    return torch.stack(rows)

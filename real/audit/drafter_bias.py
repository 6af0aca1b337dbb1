"""Whether a sampled text leans to its drafter: the trace that a wrong acceptance or a wrong residual leaves."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from real.audit.run_file import Text
from real.audit.teacher_forcing import logits_of
from real.decode.along import along
from real.draft import Drafter
from real.model.target import Target
from real.sampling import Rule

STEPS = np.array([sign * 2.0**-i for i in range(2, 9) for sign in (1, -1)])
"""How far the laws that a text is tried at lean to the drafter, or away from it."""


@dataclass(frozen=True)
class Lean:
    """How the tokens of a text stand between target p and drafter q.

    With r = (q - p) / (q + p) and s = r - Σ p r, every p (1 + h s) with |h| <= 1/4 is a distribution: p leaning to q, or away.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | score | float64 `[n]` | s(token); its mean under p is 0 |
    | variance | float64 `[n]` | of s(y), y drawn from p |
    | pull, square | float64 `[n]` | Σ q s and Σ q s^2: mean and mean square of s(y), y drawn from q |
    | step | float64 `[n, len(STEPS)]` | log(1 + h s(token)) |
    """

    score: np.ndarray
    variance: np.ndarray
    pull: np.ndarray
    square: np.ndarray
    step: np.ndarray


@torch.inference_mode()
def lean(p: Tensor, q: Tensor, token: tuple[int, ...]) -> Lean:
    """The columns of `Lean` for `token [n]`, drawn from `p [n, vocab]` or, in part, from `q [n, vocab]`."""
    r = ((q - p) / (q + p)).nan_to_num(0)  # 0 / 0 where both cut a token off
    s = r - (p * r).sum(-1, keepdim=True)
    own = s.gather(-1, torch.tensor(token, device=p.device)[:, None])[:, 0]
    step = torch.log1p(own[:, None] * torch.from_numpy(STEPS).to(own))
    square = s.square()
    return Lean(
        *(
            c.cpu().numpy()
            for c in (own, (p * square).sum(-1), (q * s).sum(-1), (q * square).sum(-1), step)
        )
    )


@torch.inference_mode()
def offered(target: Target, drafter: Drafter, rule: Rule, text: Text) -> Tensor | None:
    """The drafter's processed distribution at every token of a text, float64 `[n, vocab]`; None for one that shows none.

    A language model of the token prefix takes one pass; any other drafter is driven along the text, one token and one pass a time.
    """
    if not drafter.has_logits:
        return None
    if drafter.prefix_only and drafter.lm is not None:
        return torch.cat(
            [
                rule.probs(logits).to(target.decoder.device)
                for _, logits in logits_of(drafter.lm, text.prompt, text.token)
            ]
        )
    rows = []
    for _ in along(target, drafter, text.prompt, text.token):
        step = drafter.next()
        if step is None or step.logits is None:
            return None
        rows.append(rule.probs(step.logits[None])[0].to(target.decoder.device))
    return torch.stack(rows)

"""Optimizers of a language model: Muon for inner matrices, AdamW for the rest or for all."""

import re

import torch
from torch import Tensor, nn

from real.model.prepacked import multiplies_bfloat16
from real.train.schedule import TrainSchedule


class Float32Muon(torch.optim.Muon):
    """`torch.optim.Muon` with `adjust_lr_fn` "match_rms_adamw" and products in float32.

    PyTorch's multiplies in bfloat16, on a CPU without instructions for it some 30 times as slow:
    more than all the rest of a training step. State is the same.
    """

    @torch.no_grad()
    def step(self, closure=None):
        """One step along the orthogonalized momentum of every matrix that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for weight in (w for w in group["params"] if w.grad is not None):
                state = self.state[weight]
                buffer = state.setdefault("momentum_buffer", torch.zeros_like(weight.grad))
                buffer.lerp_(weight.grad, 1 - momentum)
                update = weight.grad.lerp(buffer, momentum) if group["nesterov"] else buffer
                update = orthogonalized(
                    update, group["ns_coefficients"], group["ns_steps"], group["eps"]
                )
                weight.mul_(1 - rate * group["weight_decay"])
                weight.add_(update, alpha=-rate * 0.2 * max(weight.shape) ** 0.5)
        return loss


def orthogonalized(
    x: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """About U V^T of `x [m, n]` = U S V^T, by X <- a X + (b G + c G G) X with G = X X^T.

    Newton-Schulz iterations of Muon (K. Jordan et al., kellerjordan.github.io/posts/muon), from
    X = x / |x|. Float32 or wider.
    """
    a, b, c = coefficients
    tall = x.shape[0] > x.shape[1]
    x = x.mT if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


VOCABULARY = re.compile(r"(^|\.)(\w*embed\w*|\w*head)\.")
"""Names of matrices over the vocabulary: embed, embed_tokens, head, lm_head; not `heads`."""


def optimizers(
    parameters: dict[str, nn.Parameter], schedule: TrainSchedule
) -> list[torch.optim.Optimizer]:
    """Muon for matrices inside layers and blocks; AdamW for embeddings, heads, norms and biases.

    Muon multiplies in float32 where the device emulates bfloat16. With `schedule.optimizer`
    "adamw" that for all, and weight decay of all.
    """
    if schedule.optimizer == "adamw":
        return [_adamw(list(parameters.values()), schedule, schedule.decay)]
    inner = [p for n, p in parameters.items() if p.ndim == 2 and not VOCABULARY.search(n)]
    inner_ids = {id(p) for p in inner}
    outer = [p for p in parameters.values() if id(p) not in inner_ids]
    built: list[torch.optim.Optimizer] = []
    if inner:
        muon = torch.optim.Muon if multiplies_bfloat16(inner[0].device) else Float32Muon
        built.append(
            muon(
                inner, lr=schedule.rate, weight_decay=schedule.decay, adjust_lr_fn="match_rms_adamw"
            )
        )
    if outer:
        built.append(_adamw(outer, schedule, 0.0))
    return built


def _adamw(weights: list[nn.Parameter], schedule: TrainSchedule, decay: float) -> torch.optim.AdamW:
    # one kernel for all on a GPU; on a CPU the plain loop stays, bit for bit
    fused = all(p.is_cuda for p in weights)
    return torch.optim.AdamW(
        weights, lr=schedule.rate, betas=schedule.betas, weight_decay=decay, fused=fused
    )

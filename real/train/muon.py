"""Muon where bfloat16 is emulated: its orthogonalization multiplies in float32."""

import torch
from torch import Tensor


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

"""Cross-entropy of logits against tokens, and against another model's distribution."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 128
"""Rows whose logits over the vocabulary are held at a time."""

Head = tuple[Tensor, Tensor | None]
"""Weight `[N, width]` and bias `[N]` of a vocabulary head."""


def next_token_loss(logits: Tensor, token: Tensor) -> Tensor:
    """Mean cross-entropy in nats of `token [...]` under `logits [..., vocab]`."""
    return F.cross_entropy(logits.flatten(0, -2).float(), token.flatten())


def distillation_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy -Σ p log q of logits (q) to the target's (p), both `[..., vocab]`."""
    p = target.flatten(0, -2).float().softmax(-1)
    return F.cross_entropy(logits.flatten(0, -2).float(), p)


def head_distillation_loss(hidden: Tensor, head: Head, feature: Tensor, target: Head) -> Tensor:
    """`distillation_loss` of the logits of two vocabulary heads, which are never held whole.

    | argument | meaning |
    | --- | --- |
    | hidden `[n, width]`, head | what the drafter's vocabulary head multiplies, and the head |
    | feature `[n, target's width]`, target | the target's, of the same N, without gradient |

    """
    loss: Tensor = _Distillation.apply(hidden, *head, feature, *target)
    return loss


class _Distillation(torch.autograd.Function):
    """The loss with its gradients, which forward already computes: logits are never stored."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        feature: Tensor,
        target_weight: Tensor,
        target_bias: Tensor | None,
    ) -> Tensor:
        dtype, wide = _product_dtype(hidden), torch.promote_types(hidden.dtype, torch.float32)
        own = _cast(dtype, hidden, weight, bias)
        given = _cast(dtype, feature, target_weight, target_bias)
        needs = ctx.needs_input_grad[:3]
        grad = [
            None if part is None or not needed else torch.zeros_like(part, dtype=wide)
            for part, needed in zip((hidden, weight, bias), needs)
        ]
        total = hidden.new_zeros((), dtype=wide)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), CHUNK):
                part = slice(start, start + CHUNK)
                p = F.linear(given[0][part], *given[1:]).to(wide).softmax(-1)
                logq = F.linear(own[0][part], *own[1:]).to(wide).log_softmax(-1)
                total -= (p * logq).sum()
                # d/dlogits of -Σ p log q
                change = logq.exp_().sub_(p).div_(len(hidden))
                narrow = change.to(dtype)
                if grad[0] is not None:
                    grad[0][part] = narrow @ own[1]
                if grad[1] is not None:
                    grad[1] += narrow.t() @ own[0][part]
                if grad[2] is not None:
                    grad[2] += change.sum(0)
        parts = zip(grad, (hidden, weight, bias))
        ctx.save_for_backward(*(g if g is None or x is None else g.to(x.dtype) for g, x in parts))
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        (scale,) = grad_outputs
        own = (None if g is None else g * scale.to(g.dtype) for g in ctx.saved_tensors)
        return *own, None, None, None


def _product_dtype(x: Tensor) -> torch.dtype:
    """The number type of matrix products here, by autocast."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _cast(dtype: torch.dtype, *parts: Tensor | None) -> list[Any]:
    return [None if part is None else part.detach().to(dtype) for part in parts]

"""Cross-entropy of logits against tokens, and against another model's distribution."""

from torch import Tensor
from torch.nn import functional as F


def next_token_loss(logits: Tensor, token: Tensor) -> Tensor:
    """Mean cross-entropy in nats of `token [...]` under `logits [..., vocab]`."""
    return F.cross_entropy(logits.flatten(0, -2).float(), token.flatten())


def distillation_loss(logits: Tensor, target: Tensor, token: Tensor | None = None) -> Tensor:
    """Mean cross-entropy -Σ p log q of logits (q) to the target's (p), both `[..., vocab]`.

    With `token [N]` the logits `[..., N]` are those of these tokens, and the sum is over them.
    """
    p = target.flatten(0, -2).float().softmax(-1)
    p = p if token is None else p[:, token]
    return F.cross_entropy(logits.flatten(0, -2).float(), p)

"""Cross-entropy of logits against tokens, and against another model's distribution."""

from torch import Tensor
from torch.nn import functional as F


def next_token_loss(logits: Tensor, token: Tensor) -> Tensor:
    """Mean cross-entropy in nats of `token [b, n]` under `logits [b, n, vocab]`."""
    return F.cross_entropy(logits.flatten(0, 1).float(), token.flatten())


def distillation_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy -Σ p log q of logits (q) to the target's (p), both `[b, n, vocab]`."""
    p = target.flatten(0, 1).float().softmax(-1)
    return F.cross_entropy(logits.flatten(0, 1).float(), p)

"""Losses that several kinds of drafters are trained by."""

import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.model.losses import distillation_loss, next_token_loss


@torch.no_grad()
def target_features(target: Decoder, token: Tensor) -> Tensor:
    """The target's features `[b, n, width]` of `token [b, n]`: what its head multiplies."""
    position = torch.arange(token.shape[1], device=token.device)
    layers = range(len(target.layers))
    return target.norm(target.run(target.embed(token), layers, target.rotation(position)))


def language_model_loss(lm: Decoder, target: Decoder, token: Tensor, soft: bool) -> Tensor:
    """Cross-entropy of a language model at `token [b, n + 1]`.

    Towards the target's distribution, or with `soft=False` towards the next token.
    """
    logits = lm(token[:, :-1])
    if not soft:
        return next_token_loss(logits, token[:, 1:])
    with torch.no_grad():
        wanted = target(token[:, :-1])
    return distillation_loss(logits, wanted)


def multi_head_loss(
    heads,
    target: Decoder,
    token: Tensor,
    soft: bool = True,
    generator: torch.Generator | None = None,
    decay: float = 0.8,
    stride: int | None = None,
) -> Tensor:
    """Σ_j decay^j CE(head j, t_{i+2+j}) over heads j (Medusa §2.2.1, arXiv 2401.10774).

    `token [b, n + 1]`; with `soft` towards the target's distribution at t_{i+2+j}, else its token.
    Rows whose token lies behind the sequence are left out. Each head is evaluated on every
    `stride`-th row from a random first; by default as many as there are heads, because four
    vocabularies a row cost more than a row of the target. ValueError for too short sequences.
    """
    count = len(heads.stacks)
    stride = stride or count
    if token.shape[1] < 2 + count + stride:
        raise ValueError(
            f"sequences have {token.shape[1]} tokens; "
            f"{count} heads need at least {2 + count + stride}"
        )
    feature = target_features(target, token[:, :-1])
    device = generator.device if generator else "cpu"
    first = int(torch.randint(stride, (1,), generator=generator, device=device))
    total = feature.new_zeros((), dtype=torch.float32)
    for j in range(count):
        rows = slice(first, feature.shape[1] - 1 - j, stride)
        hidden = heads.teacher_forced(target, feature[:, : feature.shape[1] - 1 - j], token, j)
        logits = heads.logits(target, j, hidden[:, rows])
        if soft:
            wanted = target.head(feature[:, 1 + j :][:, rows]).detach()
            loss = distillation_loss(logits, wanted)
        else:
            loss = next_token_loss(logits, token[:, 2 + j :][:, rows])
        total = total + decay**j * loss
    return total

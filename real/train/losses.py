"""What a model is trained towards."""

import torch
from torch import Tensor
from torch.nn import functional as F

from real.model.decoder import Decoder


def next_token(logits: Tensor, token: Tensor) -> Tensor:
    """Mean cross-entropy in nats of `token [b, n]` under `logits [b, n, vocab]`."""
    return F.cross_entropy(logits.flatten(0, 1).float(), token.flatten())


def towards(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy -Σ p log q of the drafter's `logits` (q) under the target's (p), both `[b, n, vocab]`."""
    p = target.flatten(0, 1).float().softmax(-1)
    return F.cross_entropy(logits.flatten(0, 1).float(), p)


def model(
    part: Decoder,
    target: Decoder,
    token: Tensor,
    soft: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Cross-entropy of a language model `part` at the text `token [b, n + 1]`, towards the target's distribution or the next token."""
    logits = part(token[:, :-1])
    if not soft:
        return next_token(logits, token[:, 1:])
    with torch.no_grad():
        wanted = target(token[:, :-1])
    return towards(logits, wanted)


def early_exit(
    part,
    target: Decoder,
    token: Tensor,
    soft: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """As `model`, of the exit `part` behind the target's first layers (EESD §3.2)."""
    return model(part.as_language_model(target), target, token, soft, generator)


def eagle(
    part,
    target: Decoder,
    token: Tensor,
    soft: bool = True,
    generator: torch.Generator | None = None,
    weight: float = 0.1,
    noise: float = 0.1,
) -> Tensor:
    """SmoothL1(f, f^) + `weight` CE(softmax(head f), softmax(head f^)), means over rows (EAGLE §4.2), of the part's estimates f^ of f.

    `token [b, n + 1]`, the target reads the first n >= 2; row i reads f_i and is taught f_{i+1}, its cross-entropy is towards the target's
    distribution there, or with `soft=False` towards the text's own token. Features that are read, and only they, get uniform noise
    U(-`noise`, `noise`) of `generator`, in absolute terms as the paper has it (the released code scales it by 512 / text length); on a
    card it is drawn there, from the generator's seed.
    """
    if token.shape[1] < 3:
        raise ValueError(
            f"texts of {token.shape[1]} tokens; expected at least 3 (two that are read, and the next)"
        )
    with torch.no_grad():
        position = torch.arange(token.shape[1] - 1, device=token.device)
        hidden = target.run(
            target.embed(token[:, :-1]), range(len(target.layers)), target.rotation(position)
        )
        feature = target.norm(hidden)
        read, true = feature[:, :-1], feature[:, 1:]
        draw = torch.rand(read.shape, generator=_there(generator, read.device), device=read.device)
        read = read + ((2 * draw - 1) * noise).to(read)
    estimate = part.teacher_forced(target, read, token[:, :-1])
    logits = target.head(estimate)
    fit = towards(logits, target.head(true).detach()) if soft else next_token(logits, token[:, 2:])
    return F.smooth_l1_loss(estimate.float(), true.float()) + weight * fit


def _there(generator: torch.Generator | None, device) -> torch.Generator | None:
    """The generator, or one of its seed on that device: what a host draws for a batch of features takes longer than a card's step."""
    if generator is None or generator.device.type == device.type:
        return generator
    return torch.Generator(device).manual_seed(generator.initial_seed())


def medusa(
    part,
    target: Decoder,
    token: Tensor,
    soft: bool = True,
    generator: torch.Generator | None = None,
    decay: float = 0.8,
    stride: int | None = None,
) -> Tensor:
    """Sum over heads j of `decay`^j times the cross-entropy of what head j says of t_{i+2+j} (Medusa §2.2.1, arXiv 2401.10774).

    `token [b, n + 1]`; towards the target's distribution there, or with `soft=False` the text's token. Rows whose token lies behind the
    text are left out, and of the others each head judges every `stride`-th from a random first (by default as many as there are heads:
    four vocabularies a row cost more than a row of the target). ValueError for texts too short for the last head.
    """
    heads = len(part.stacks)
    stride = stride or heads
    if token.shape[1] < 2 + heads + stride:
        raise ValueError(
            f"texts of {token.shape[1]} tokens; expected at least {2 + heads + stride} for {heads} heads"
        )
    with torch.no_grad():
        position = torch.arange(token.shape[1] - 1, device=token.device)
        hidden = target.run(
            target.embed(token[:, :-1]), range(len(target.layers)), target.rotation(position)
        )
        feature = target.norm(hidden)
    first = int(
        torch.randint(
            stride, (1,), generator=generator, device=generator.device if generator else "cpu"
        )
    )
    total = feature.new_zeros((), dtype=torch.float32)
    for j in range(heads):
        rows = slice(first, feature.shape[1] - 1 - j, stride)
        logits = part.logits(
            target, j, part.teacher_forced(target, feature[:, : feature.shape[1] - 1 - j], token, j)[:, rows]
        )
        if soft:
            fit = towards(logits, target.head(feature[:, 1 + j :][:, rows]).detach())
        else:
            fit = next_token(logits, token[:, 2 + j :][:, rows])
        total = total + decay**j * fit
    return total


hydra = medusa
"""The same sum for heads that see the tokens before theirs (Hydra §3, arXiv 2402.05109): `part.teach` shows them."""


def glide(
    part,
    target: Decoder,
    token: Tensor,
    soft: bool = True,
    generator: torch.Generator | None = None,
    block: int = 5,
) -> Tensor:
    """Cross-entropy of a drafter that reads the target's keys, those of a row's own block of `block` rows hidden (GLIDE §4.1).

    `token [b, n + 1]`; towards the target's distribution, or with `soft=False` (as in the paper) the text's next token.
    """
    keys, hidden = part.read(target, token[:, :-1])
    logits = part.logits(target, part.teacher_forced(target, token[:, :-1], keys, block))
    return (
        towards(logits, target.logits(hidden).detach())
        if soft
        else next_token(logits, token[:, 1:])
    )

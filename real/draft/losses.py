"""Losses of language models, and of several kinds of drafters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.model.decoder import Decoder
from real.model.draft_head import DraftVocabularyHead, head_rows
from real.model.passes import causal_mask

CHUNK = {"cpu": 128, "cuda": 4096}
"""Rows whose logits over the vocabulary are held at a time, by type of device."""

Head = tuple[Tensor, Tensor | None]
"""Weight `[N, width]` and bias `[N]` of a vocabulary head."""


def next_token_loss(logits: Tensor, token: Tensor) -> Tensor:
    """Mean cross-entropy in nats of `token [...]` under `logits [..., vocab]`."""
    return F.cross_entropy(logits.flatten(0, -2).float(), token.flatten())


def head_distillation_loss(hidden: Tensor, head: Head, feature: Tensor, target: Head) -> Tensor:
    """Mean cross-entropy -Σ p log q of two heads' logits (q, the target's p), never held whole.

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
            size = CHUNK.get(hidden.device.type, CHUNK["cpu"])
            for start in range(0, len(hidden), size):
                part = slice(start, start + size)
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


@dataclass(frozen=True)
class TrainingBatch:
    """Sequences of the target, padded at their ends."""

    token: Tensor  # int64 [b, n + 1]: the sequences; the first n are read, the last n predicted
    # bool [b, n + 1]: the tokens that are learned as next tokens; None: all
    learned: Tensor | None = None
    # name -> features [b, n, ...] of the tokens read, see read_target
    stored: Mapping[str, Tensor] = field(default_factory=dict)

    def features(self, target: Decoder, *names: str) -> list[Tensor]:
        """The named features of the tokens read; those that are not stored take a target pass."""
        missing = [name for name in names if name not in self.stored]
        read = read_target(target, self.token[:, :-1], missing) if missing else {}
        return [self.stored[name] if name in self.stored else read[name] for name in names]

    def learning(self, ahead: int) -> Tensor | None:
        """Bool `[b, n + 1 - ahead]`: whether row i learns token i + `ahead`; None: all do."""
        return None if self.learned is None else self.learned[:, ahead:]


@torch.no_grad()
def read_target(target: Decoder, token: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
    """Features of `token [b, n]` in one causal pass of the target.

    | name | feature |
    | --- | --- |
    | feature | `[b, n, width]`: what the target's head multiplies |
    | tap:L | `[b, n, width]`: the residual stream after the first L layers |
    | kv:L | `[b, n, 2, kv_heads, head_dim]`: keys and values that layer L caches |
    """
    names, rows, total = list(names), token.shape[1], len(target.layers)
    if not names:
        return {}
    tap: dict[int, Tensor | None] = {
        int(name[4:]): None for name in names if name.startswith("tap:")
    }
    layers = range(total if set(names) - {f"tap:{depth}" for depth in tap} else max(tap))
    rotation = target.rotation(torch.arange(rows, device=token.device))
    cache = mask = None
    if any(name.startswith("kv:") for name in names):
        cache, mask = target.cache(batch=len(token), capacity=rows), causal_mask(rows, token.device)
    x = target.run(target.embed(token), layers, rotation, mask, cache, tap=tap)
    found: dict[str, Tensor] = {}
    for name in names:
        kind, _, layer = name.partition(":")
        if kind == "tap":
            value = tap[int(layer)]
            assert value is not None  # the pass went through that layer
            found[name] = value
        elif kind == "kv":
            assert cache is not None
            pair = torch.stack((cache.key[int(layer)], cache.value[int(layer)]))
            found[name] = pair[..., :rows, :].permute(1, 3, 0, 2, 4)
        else:
            found[name] = target.norm(x)
    return found


def learned_rows(x: Tensor, learned: Tensor | None) -> Tensor:
    """Rows `[m, ...]` of `x [b, n, ...]` that learn a token, by `learned [b, n]`; None: `x`."""
    return x if learned is None else x[learned]


def soft_loss(head: nn.Module, hidden: Tensor, target: Decoder, feature: Tensor) -> Tensor:
    """Cross-entropy of a vocabulary head to the target's distribution, mean over rows; 0 for none.

    The rows `hidden [..., width]` and `feature [..., target's width]` are what the heads multiply.
    With a draft vocabulary the target's distribution is that over its tokens, as in EAGLE-3.
    """
    hidden, feature = hidden.flatten(0, -2), feature.flatten(0, -2)
    if not len(hidden):
        return hidden.sum()
    weight, bias = head_rows(target.head)
    if isinstance(head, DraftVocabularyHead):
        weight, bias = weight[head.token], None if bias is None else bias[head.token]
    return head_distillation_loss(hidden, head_rows(head), feature, (weight, bias))


def hard_loss(head: nn.Module, hidden: Tensor, token: Tensor) -> Tensor:
    """Cross-entropy of a vocabulary head at `token [...]`, mean over rows; 0 for none.

    Tokens outside the draft vocabulary are left out.
    """
    if isinstance(head, DraftVocabularyHead):
        place = head.place[token]
        hidden, token = hidden[place >= 0], place[place >= 0]
    logits = F.linear(hidden, *head_rows(head))
    return next_token_loss(logits, token) if logits.numel() else logits.sum()


def next_prediction_loss(
    lm: Decoder, x: Tensor, target: Decoder, batch: TrainingBatch, soft: bool
) -> Tensor:
    """Cross-entropy of a language model at the learned tokens; `x [b, n, width]` passed its layers.

    Towards the target's distribution, or with `soft=False` towards the next token.
    """
    learned = batch.learning(1)
    hidden = lm.norm(learned_rows(x, learned))
    if not soft:
        return hard_loss(lm.head, hidden, learned_rows(batch.token[:, 1:], learned))
    (feature,) = batch.features(target, "feature")
    return soft_loss(lm.head, hidden, target, learned_rows(feature, learned))


def multi_head_loss(
    heads,
    target: Decoder,
    batch: TrainingBatch,
    soft: bool = True,
    generator: torch.Generator | None = None,
    decay: float = 0.8,
    stride: int | None = None,
) -> Tensor:
    """Σ_j decay^j CE(head j, t_{i+2+j}) over heads j (Medusa §2.2.1, arXiv 2401.10774).

    With `soft` towards the target's distribution at t_{i+2+j}, else its token. Rows whose token
    is past the end of the sequence, or not learned, are left out. Each head is evaluated on every
    `stride`-th row from a random first; by default as many as there are heads, because four
    vocabularies a row cost more than a row of the target. ValueError for too short sequences.
    """
    token, count = batch.token, len(heads.stacks)
    stride = stride or count
    if token.shape[1] < 2 + count + stride:
        raise ValueError(
            f"sequences have {token.shape[1]} tokens; "
            f"{count} heads need at least {2 + count + stride}"
        )
    (feature,) = batch.features(target, "feature")
    device = generator.device if generator else "cpu"
    first = int(torch.randint(stride, (1,), generator=generator, device=device))
    total = feature.new_zeros((), dtype=torch.float32)
    for j in range(count):
        rows, learned = slice(first, feature.shape[1] - 1 - j, stride), batch.learning(2 + j)
        learned = None if learned is None else learned[:, rows]
        hidden = heads.teacher_forced(target, feature[:, : feature.shape[1] - 1 - j], token, j)
        head, hidden = heads.output(target, j), learned_rows(hidden[:, rows], learned)
        if soft:
            wanted = learned_rows(feature[:, 1 + j :][:, rows], learned)
            loss = soft_loss(head, hidden, target, wanted)
        else:
            wanted = learned_rows(token[:, 2 + j :][:, rows], learned)
            loss = hard_loss(head, hidden, wanted)
        total = total + decay**j * loss
    return total

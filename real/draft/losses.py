"""Losses that several kinds of drafters are trained by."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.model.decoder import Decoder
from real.model.draft_vocabulary import DraftVocabularyHead, head_rows
from real.model.full_pass import causal_mask
from real.model.losses import head_distillation_loss, next_token_loss


@dataclass(frozen=True)
class TrainingBatch:
    """Sequences of the target, padded at their ends.

    | field | meaning |
    | --- | --- |
    | token int64 `[b, n + 1]` | the sequences; the first n are read, the last n predicted |
    | learned bool `[b, n + 1]` | the tokens that are learned as next tokens; None: all |
    | stored | name -> features `[b, n, ...]` of the tokens read, see `read_target` |
    """

    token: Tensor
    learned: Tensor | None = None
    stored: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: "TrainingBatch | Tensor") -> "TrainingBatch":
        """The batch itself; of tokens alone one that learns all of them."""
        return cls(batch) if isinstance(batch, Tensor) else batch

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


def language_model_loss(lm: Decoder, target: Decoder, batch: TrainingBatch, soft: bool) -> Tensor:
    """Cross-entropy of a language model at the learned tokens.

    Towards the target's distribution, or with `soft=False` towards the next token.
    """
    position = torch.arange(batch.token.shape[1] - 1, device=batch.token.device)
    x = lm.embed(batch.token[:, :-1])
    x = lm.run(x, range(len(lm.layers)), lm.rotation(position))
    return next_prediction_loss(lm, x, target, batch, soft)


def next_prediction_loss(
    lm: Decoder, x: Tensor, target: Decoder, batch: TrainingBatch, soft: bool
) -> Tensor:
    """The same from the output `x [b, n, width]` of all layers."""
    learned = batch.learning(1)
    hidden = lm.norm(learned_rows(x, learned))
    if not soft:
        return hard_loss(lm.head, hidden, learned_rows(batch.token[:, 1:], learned))
    (feature,) = batch.features(target, "feature")
    return soft_loss(lm.head, hidden, target, learned_rows(feature, learned))


def multi_head_loss(
    heads,
    target: Decoder,
    batch: TrainingBatch | Tensor,
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
    batch = TrainingBatch.of(batch)
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

"""Losses that several kinds of drafters are trained by."""

import torch
from torch import Tensor, nn

from real.draft.batch import TrainingBatch
from real.model.decoder import Decoder
from real.model.draft_vocabulary import DraftVocabularyHead, compact_logits
from real.model.losses import distillation_loss, next_token_loss


def learned_rows(x: Tensor, learned: Tensor | None) -> Tensor:
    """Rows `[m, ...]` of `x [b, n, ...]` that learn a token, by `learned [b, n]`; None: `x`."""
    return x if learned is None else x[learned]


def logits_loss(head: nn.Module, logits: Tensor, wanted: Tensor, soft: bool) -> Tensor:
    """Cross-entropy of a vocabulary head's `compact_logits [..., N]`, mean over rows; 0 for none.

    | soft | wanted |
    | --- | --- |
    | True | the target's logits `[..., vocab]`; its probability outside the draft vocabulary \
is dropped |
    | False | tokens `[...]`; those outside the draft vocabulary are left out |
    """
    if isinstance(head, DraftVocabularyHead):
        if soft:
            return distillation_loss(logits, wanted, head.token) if len(logits) else logits.sum()
        place = head.place[wanted]
        logits, wanted = logits[place >= 0], place[place >= 0]
    if not logits.numel():
        return logits.sum()
    return distillation_loss(logits, wanted) if soft else next_token_loss(logits, wanted)


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
    logits = compact_logits(lm.head, lm.norm(learned_rows(x, learned)))
    if not soft:
        return logits_loss(lm.head, logits, learned_rows(batch.token[:, 1:], learned), False)
    (feature,) = batch.features(target, "feature")
    with torch.no_grad():
        wanted = target.head(learned_rows(feature, learned))
    return logits_loss(lm.head, logits, wanted, True)


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
    lies behind the sequence, or is not learned, are left out. Each head is evaluated on every
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
        head = heads.output(target, j)
        logits = compact_logits(head, learned_rows(hidden[:, rows], learned))
        if soft:
            wanted = learned_rows(feature[:, 1 + j :][:, rows], learned)
            loss = logits_loss(head, logits, target.head(wanted).detach(), True)
        else:
            wanted = learned_rows(token[:, 2 + j :][:, rows], learned)
            loss = logits_loss(head, logits, wanted, False)
        total = total + decay**j * loss
    return total

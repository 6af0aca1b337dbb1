"""GLIDE: a shallow language model with cross-attention over the target's KV cache."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.draft import CachedDrafter, DrafterKind, PaperRecipe, Pick, TrainingBatch, TrainingRecipe
from real.draft.heads import head_loader, new_layers
from real.draft.kind import DraftedLogits, Proposal
from real.draft.losses import hard_loss, learned_rows, soft_loss
from real.model.decoder import Decoder, DecoderConfig, KVCache, RMSNorm, rotate
from real.model.draft_head import DraftHead, TiedDraftVocabularyHead, check_vocabulary
from real.model.passes import BranchCache, Span, TargetPass, causal_mask


class TargetCrossAttention(nn.Module):
    """x + output(attention of query(norm(x)) over the target's keys and values)."""

    def __init__(self, width: int, target: DecoderConfig):
        super().__init__()
        self.config = target
        self.norm = RMSNorm(width, target.norm_eps)
        self.query = nn.Linear(width, target.heads * target.head_dim, bias=False)
        self.output = nn.Linear(target.heads * target.head_dim, width, bias=False)
        nn.init.normal_(self.output.weight, std=0.02)

    def forward(
        self, x: Tensor, rotation, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Rows `x [b, n, width]` after attention over m keys `[b, kv_heads, m, head_dim]`.

        Keys of batch 1 are those of all rows, read in one product without a copy for each.
        `mask`, bool `[n, m]` or `[b, 1, n, m]`: the keys that each row attends to; None: all.
        Queries are rotated by the row's own position, as the cached keys are by theirs.
        """
        if not key.shape[2]:
            return x
        q = self.query(self.norm(x)).view(*x.shape[:2], -1, self.config.head_dim).transpose(1, 2)
        q = rotate(q, rotation)
        key, value = key.to(q.dtype), value.to(q.dtype)
        if mask is None:
            return x + self._attend(q, key, value, None)
        mask = mask if mask.dim() == 4 else mask[None, None]
        # a row without keys would be 0 / 0: it attends to the first key, and the result is dropped
        first = torch.arange(key.shape[2], device=mask.device) == 0
        has_keys = mask.any(-1, keepdim=True)
        attended = self._attend(q, key, value, mask | ~has_keys & first)
        return x + attended * has_keys[:, 0].to(x.dtype)

    def _attend(self, q: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        # rows that read the same keys, of one sequence or of one group of heads, become one matrix
        batch, _, rows, _ = q.shape
        together = len(key) == 1 < batch
        grouped = q.unflatten(1, (key.shape[1], -1))  # [b, kv_heads, group, n, head_dim]
        group, inner = grouped.shape[2], (2, 3)
        if together:
            grouped, inner = grouped.transpose(0, 1)[None], (2, 4)
        if mask is not None:
            mask = mask.expand(batch if together else -1, group, rows, -1)
            mask = mask.flatten(0, 2)[None, None] if together else mask.flatten(1, 2)[:, None]
        mixed = F.scaled_dot_product_attention(grouped.flatten(*inner), key, value, attn_mask=mask)
        if together:
            mixed = mixed[0].unflatten(1, (batch, group, rows)).transpose(0, 1)
        else:
            mixed = mixed.unflatten(2, (group, rows))
        return self.output(mixed.flatten(1, 2).transpose(1, 2).flatten(2))


def blockwise_mask(rows: int, block: int) -> Tensor:
    """Bool `[rows, rows]`: row j attends to keys k < block * floor(j / block) (GLIDE §4.1).

    Within a block of 5 the newest visible key is 1, 2, .. 5 rows old, as for the first, second, ..
    fifth token of a draft. ValueError for a block that is no integer of 1 or more.
    """
    if type(block) is not int or block < 1:
        raise ValueError(
            f"block is {block!r}; expected an integer of 1 row or more (the paper has 5)"
        )
    place = torch.arange(rows)
    return place < (place // block * block)[:, None]


TargetKV = Sequence[tuple[Tensor, Tensor]]
"""Cached keys and values of the target `[b, kv_heads, m, head_dim]`, one pair per draft layer."""


class GlideModel(DraftHead):
    """Layers of self-attention, cross-attention over one target layer's cache and SwiGLU (§4.1).

    ValueError for settings that cannot be.
    """

    layers: Any
    glimpses: Any

    def __init__(
        self,
        target: Decoder,
        layers: int = 1,  # decoder layers
        reads: Sequence[int] | None = None,  # target layer that each layer reads; None: the last
        cross: bool = True,  # False: no cross-attention (the ablation of GLIDE's Figure 4)
        shared: bool = True,  # the target's embedding and head; False: a tied pair, as published
        width: int | None = None,  # of that pair: a multiple of the head size; None: the target's
        rebuild: bool = True,  # rows of accepted drafts are recomputed, see `GlideDrafter`
    ):
        super().__init__()
        s = target.config
        reads = _checked_reads(layers, reads, s)
        _check_width(width, shared, s)
        for key, value in {"cross": cross, "shared": shared, "rebuild": rebuild}.items():
            if type(value) is not bool:
                raise ValueError(f"{key} is {value!r}; expected true or false")
        self.settings = {
            "layers": layers,
            "reads": reads,
            "cross": cross,
            "shared": shared,
            "width": width,
            "rebuild": rebuild,
        }
        self.reads, self.cross, self.shared, self.rebuild = reads, cross, shared, rebuild
        own = width or s.width
        self.config = _config(own, s)
        self.layers = new_layers(self.config, layers)
        attentions = (TargetCrossAttention(own, s) for _ in range(layers if cross else 0))
        self.glimpses = nn.ModuleList(attentions)  # the name is that of the stored tensors
        self.norm = RMSNorm(own, s.norm_eps)
        if shared:
            self.norm.load_state_dict(target.norm.state_dict())
        else:
            self.embed = nn.Embedding(s.vocab, own)
            nn.init.normal_(self.embed.weight, std=0.02)
        self.to(target.device, target.dtype)

    def run(self, target: Decoder, token: Tensor, keys: TargetKV, mask: Tensor | None) -> Tensor:
        """Whole sequences `token [b, n]`: `[b, n, width]` before the final norm.

        `keys` and `mask [n, m]` as for `TargetCrossAttention`.
        """
        rotation = target.rotation(torch.arange(token.shape[1], device=token.device))
        return self.layered(target, token, rotation, (None, mask), keys, None)

    def layered(
        self, target: Decoder, token: Tensor, rotation, masks, keys: TargetKV, cache, start: int = 0
    ) -> Tensor:
        """All layers on `token [b, n]`; `masks`: of the drafter's rows, and of the target's."""
        own, cross = masks
        x = (target if self.shared else self).embed(token)
        for i, layer in enumerate(self.layers):
            x = layer.attend(x, rotation, own, cache, i, start)
            if self.cross:
                x = self.glimpses[i](x, rotation, *keys[i], cross)
            x = layer.mlp(x)
        return x

    def logits(self, target: Decoder, x: Tensor) -> Tensor:
        """Logits `[..., vocab]` from the output of `run`."""
        output = self.output(target)
        x = self.norm(x)
        return F.linear(x, output.weight) if isinstance(output, nn.Embedding) else output(x)

    def output(self, target: Decoder) -> nn.Module:
        """The vocabulary head, or the drafter's own embedding."""
        if self.vocabulary is not None:
            return self.vocabulary
        return target.head if self.shared else self.embed

    def restrict(self, target: Decoder, token: Tensor) -> None:
        """Like `DraftHead.restrict`; from the drafter's own embedding unless it is shared."""
        if self.shared:
            return super().restrict(target, token)
        self.draft_token = check_vocabulary(token, target.config.vocab)
        self.vocabulary = TiedDraftVocabularyHead(self.embed, token)

    @property
    def features(self) -> tuple[str, ...]:
        """The target's keys and values that the layers read, by the names of `read_target`."""
        return tuple(f"kv:{layer}" for layer in self.reads) if self.cross else ()

    def keys(self, features: Sequence[Tensor]) -> TargetKV:
        """The values of `features`, `[b, m, 2, kv_heads, head_dim]` each, as `run` takes them."""
        return [(kv[:, :, 0].transpose(1, 2), kv[:, :, 1].transpose(1, 2)) for kv in features]

    def teacher_forced(self, target: Decoder, token: Tensor, keys: TargetKV, block: int) -> Tensor:
        """`run` on whole sequences `token [b, n]` under `blockwise_mask`."""
        mask = blockwise_mask(token.shape[1], block).to(token.device)
        return self.run(target, token, keys, mask)


def _config(width: int, target: DecoderConfig) -> DecoderConfig:
    """The target's sizes, scaled to a width."""
    if width == target.width:
        return target
    heads = width // target.head_dim
    hidden = max(1, target.hidden * width // target.width)
    return replace(target, width=width, heads=heads, kv_heads=heads, hidden=hidden)


def _checked_reads(layers: Any, reads: Any, target: DecoderConfig) -> list[int]:
    total = target.layers
    if type(layers) is not int or not 1 <= layers <= total:
        raise ValueError(
            f"layers is {layers!r}; expected an integer from 1 to the target's {total}"
        )
    if reads is None:
        reads = range(total - layers, total)
    reads = [reads] if type(reads) is int else list(reads)
    if len(reads) != layers or not all(type(i) is int and 0 <= i < total for i in reads):
        raise ValueError(
            f"reads is {reads}; expected {layers} target layers, each from 0 to {total - 1}"
        )
    return reads


def _check_width(width: int | None, shared: bool, target: DecoderConfig) -> None:
    valid = width is None or (type(width) is int and width >= 1 and width % target.head_dim == 0)
    if not valid or (shared and width not in (None, target.width)):
        raise ValueError(
            f"width is {width!r}; expected a multiple of {target.head_dim}, "
            f"and with shared=true the target's {target.width}"
        )


class GlideDrafter(CachedDrafter):
    """Drafts with cross-attention over the target's keys of all committed rows, at every step.

    Step i of a round is i rows away from the newest key (not `prefix_only`, but for `cross=False`).

    | layers | rebuild | rows of accepted drafts |
    | --- | --- | --- |
    | 1 | any | stay: their keys depend on tokens alone |
    | 2 or more | True | are dropped, and enter anew with the next round's first step |
    | 2 or more | False | stay as drafted: the drafter is not `history_free` |
    """

    name = "glide"

    def __init__(self, target: Decoder, head: GlideModel):
        self.decoder, self.head = target, head
        self.prefix_only = not head.cross
        # whether rows of accepted drafts equal fresh ones
        self.reusable = len(head.layers) == 1 or not head.cross
        self.history_free = self.reusable or head.rebuild

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.target, layers, capacity = target, len(self.head.layers), len(prompt) + 64
        dtype, device = self.decoder.dtype, self.decoder.device
        self.cache = KVCache(self.head.config, layers, 1, capacity, dtype, device)
        super().begin(target, prompt, prefill, pick)

    def rollback(self, accepted: int) -> None:
        super().rollback(accepted if self.reusable or not self.head.rebuild else 0)

    def _forward(self, tokens: list[int], span: Span, head: str) -> tuple[Tensor, ...]:
        decoder, device, committed = self.decoder, self.decoder.device, self.target.length
        cache = self.target.cache
        keys = [
            (cache.key[i][:, :, :committed], cache.value[i][:, :, :committed])
            for i in self.head.reads
        ]
        # a drafted row attends to every key, a committed one to those before it
        mask = None
        if span.start < committed:
            place = torch.arange(span.start, span.start + span.rows, device=device)
            mask = torch.arange(committed, device=device) < place[:, None]
        token, (position, own) = torch.tensor([tokens], device=device), span.places(device)
        rotation, masks = decoder.rotation(position), (own, mask)
        self.cache.reserve(span.start + span.rows)
        x = self.head.layered(decoder, token, rotation, masks, keys, self.cache, span.start)[0]
        predicts = x[-1:] if head == "last" else x
        return x, *([self.head.logits(decoder, predicts)] if head else ())


class ParallelGlide:
    """Committed rows attend to the target's keys before them, drafts to those before their root."""

    min_context = 1

    def __init__(self, drafter: GlideDrafter, sequence: TargetPass):
        self.head, self.target, self.sequence = drafter.head, sequence.target, sequence
        self.rows, self.cached_layers = len(sequence.token), len(self.head.layers)
        device, dtype = sequence.token.device, self.target.dtype
        self.cache = KVCache(self.head.config, self.cached_layers, 1, self.rows, dtype, device)
        own = causal_mask(self.rows, device)
        rotation = self.target.rotation(torch.arange(self.rows, device=device))
        self.true = self._forward(sequence.token[None], rotation, (own, own.tril(-1)), self.cache)[
            0
        ]

    def start(self, position: Tensor) -> Proposal:
        row = position + self.sequence.prompt_length - 1
        self.branches: Any = BranchCache(self.cache, self.rows, row + 1)
        place = torch.arange(self.rows, device=row.device)
        self.visible = (place < row[:, None])[:, None, None]
        hidden = self.true[row][:, None]
        return self._propose(hidden)

    def extend(self, parent: Tensor, token: Tensor) -> Proposal:
        rotation, own = self.branches.step(parent, self.target)
        hidden = self._forward(token, rotation, (own, self.visible), self.branches)
        return self._propose(hidden)

    def _propose(self, hidden: Tensor) -> Proposal:
        output = self.head.output(self.target)
        return DraftedLogits.from_head(output, self.head.norm(hidden)), hidden

    def _forward(self, token: Tensor, rotation, masks, cache) -> Tensor:
        keys = []
        if self.head.cross:
            stored = self.sequence.cache
            keys = [(stored.key[i], stored.value[i]) for i in self.head.reads]
        return self.head.layered(self.target, token, rotation, masks, keys, cache)


def glide_loss(
    head: GlideModel,
    target: Decoder,
    batch: TrainingBatch,
    soft: bool = True,
    generator: torch.Generator | None = None,
    block: int = 5,
) -> Tensor:
    """Cross-entropy at the learned tokens; target keys of a row's own block are masked.

    Towards the target's distribution, or with `soft=False` (as in the paper) the next token.
    """
    token, learned = batch.token, batch.learning(1)
    reads = batch.features(target, *head.features, *(["feature"] if soft else []))
    keys = head.keys(reads[: len(head.features)])
    x = head.teacher_forced(target, token[:, :-1], keys, block)
    hidden, output = head.norm(learned_rows(x, learned)), head.output(target)
    if soft:
        return soft_loss(output, hidden, target, learned_rows(reads[-1], learned))
    return hard_loss(output, hidden, learned_rows(token[:, 1:], learned))


RECIPE = TrainingRecipe(
    GlideModel,
    glide_loss,
    GlideDrafter,
    "glide",
    soft=True,
    rate=8e-3,
    reads=lambda head, soft: (*head.features, *(["feature"] if soft else [])),
    paper=PaperRecipe(
        "GLIDE §4.1 and Appendices B and C, arXiv 2402.02082",
        soft=False,
        settings={"layers": 1, "shared": False, "block": 5},
        rate=5e-4,
        batch=64,
        silent=("betas", "decay", "clip", "warmup"),
    ),
)


KIND = DrafterKind(GlideDrafter, head_loader(RECIPE), RECIPE, ParallelGlide)

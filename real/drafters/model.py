"""Vanilla drafting: a smaller language model with the target's tokenizer."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from real.draft import CachedDrafter, DrafterKind, Pick, TrainingBatch, TrainingRecipe
from real.draft.kind import ParallelLanguageModel
from real.draft.losses import next_prediction_loss
from real.model.checkpoint import check_same_vocabulary, load_decoder, save_decoder
from real.model.decoder import Decoder, DecoderConfig, initialize
from real.model.draft_head import (
    DraftVocabularyHead,
    TiedDraftVocabularyHead,
    check_vocabulary,
    load_vocabulary,
)
from real.model.passes import EAGER, ForwardContext, RaggedKVCache, Span


class ModelDrafter(CachedDrafter):
    """A decoder with its own KV cache; its proposals depend on the token prefix alone."""

    name = "model"
    prefix_only = True
    history_free = True
    captures = True

    def __init__(self, lm: Decoder):
        self.lm: Decoder = lm

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "ModelDrafter":
        """From a transformers checkpoint; WeightsError for a vocabulary other than the target's."""
        drafter = cls.load_alone(folder, target.dtype, target.device)
        check_same_vocabulary(folder, drafter.lm, target)
        return drafter

    @classmethod
    def load_alone(
        cls, folder: Path, dtype: torch.dtype, device: torch.device | str
    ) -> "ModelDrafter":
        """From a transformers checkpoint, whatever its target.

        draft_vocabulary.safetensors in its folder names the tokens that it drafts from (FR-Spec).
        """
        lm = load_decoder(folder, dtype, device)
        token = load_vocabulary(Path(folder), lm.config.vocab)
        if token is not None:
            lm.head = DraftVocabularyHead(lm.head, token.to(lm.device))
        return cls(lm)

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.cache = self.passes.cache(self.name, self.lm, len(self.lm.layers), len(prompt) + 64)
        super().begin(target, prompt, prefill, pick)

    def _forward(self, tokens: list[int], span: Span, head: str) -> tuple[Tensor, ...]:
        lm = self.lm

        def body(token: Tensor, at: ForwardContext) -> tuple[Tensor, ...]:
            x = at.through(lm, lm.embed(token), range(len(lm.layers)))
            return x, *([lm.logits(at.end(x) if head == "last" else x)] if head else ())

        passes = self.passes if head else EAGER  # a prompt's pass has its own number of rows
        return passes.run(f"{self.name} {head}", lm, body, [tokens], span, self.cache)


class BatchDrafter:
    """A decoder that reads several sequences, known by their ids, in one pass.

    Rows in the cache are valid for the tokens that a sequence shares with its call before.
    """

    padded = 8  # most unread tokens of a sequence that shares a pass; a longer one has its own

    def __init__(self, lm: Decoder, capacity: int = 512):
        self.lm, self.cache = lm, cast(Any, RaggedKVCache(lm, 1, capacity))
        # of the sequence in each slot of the cache: its id, and the tokens whose rows are there
        self.ids, self.read = list[str](), list[np.ndarray]()

    @torch.inference_mode()
    def logits(self, texts: Mapping[str, np.ndarray]) -> Tensor:
        """Logits `[n, vocab]` after each of n sequences of tokens int32 `[m]`, in their order."""
        length, unread = self.cache.length, dict[int, np.ndarray]()
        for id, text in texts.items():
            if id not in self.ids:
                self.ids.append(id)
                self.read.append(text[:0])
                length.append(0)
            slot = self.ids.index(id)
            held = min(len(self.read[slot]), len(text) - 1)
            other = np.flatnonzero(self.read[slot][:held] != text[:held])
            length[slot] = int(other[0]) if len(other) else held
            unread[slot], self.read[slot] = text[length[slot] :], text
        self.cache.fit(len(self.ids), max(map(len, texts.values())) + self.padded)
        alone = {slot for slot, tokens in unread.items() if len(tokens) > self.padded}
        found = dict[int, Tensor]()
        for slots in filter(None, (*([slot] for slot in alone), sorted(unread.keys() - alone))):
            found |= zip(slots, self._pass(slots, [unread[slot] for slot in slots]))
        return torch.stack([found[slot] for slot in unread])

    @torch.inference_mode()
    def forget(self, id: str) -> None:
        """Frees the rows of a sequence; nothing for an unknown one."""
        if id in self.ids:
            slot = self.ids.index(id)
            self.cache.drop(slot)
            self.ids[slot], self.read[slot] = self.ids[-1], self.read[-1]
            del self.ids[-1], self.read[-1]

    def _pass(self, slots: list[int], unread: list[np.ndarray]) -> Tensor:
        """Reads tokens after the rows of some slots, ascending: logits after the last of each."""
        lm, rows = self.lm, [len(tokens) for tokens in unread]
        token = nn.utils.rnn.pad_sequence([torch.from_numpy(tokens) for tokens in unread], True)
        rotation, mask = self.cache.step(lm, slots, rows)
        x = lm.embed(token.to(lm.device))
        x = lm.run(x, range(len(lm.layers)), rotation, mask, self.cache)
        return lm.logits(x[range(len(rows)), [n - 1 for n in rows]])


def publish(drafter: ModelDrafter, context: int, end: int | None, folder: Path) -> None:
    """Writes a Llama checkpoint that vLLM and transformers load; gives the drafter its head.

    A draft vocabulary becomes an untied head of all tokens with the same argmax
    (`DraftVocabularyHead.whole`). context: of a checkpoint that states none. WeightsError for
    another family.
    """
    lm = drafter.lm
    if isinstance(lm.head, DraftVocabularyHead):
        lm.head, lm.config = lm.head.whole(), replace(lm.config, tied=False)
    save_decoder(lm, folder, end, lm.context or context, torch.float32)


class SmallModel(Decoder):
    """A decoder that can be restricted to a draft vocabulary while it trains; tied."""

    draft_token: Tensor | None

    def restrict(self, target: Decoder, token: Tensor) -> None:
        """Drafts from `token [N]` alone: rows of the drafter's embedding."""
        self.draft_token = check_vocabulary(token, target.config.vocab)
        self.head = TiedDraftVocabularyHead(self.embed, token)


def small_model(
    target: Decoder,
    width: int = 64,
    layers: int = 2,
    heads: int = 2,
    kv_heads: int = 0,
    head_dim: int = 32,
    hidden: int = 160,
) -> Decoder:
    """A language model of the given sizes with the target's vocabulary, drawn from torch's seed.

    `kv_heads` 0 means as many as `heads`. ValueError for sizes that no decoder has.
    """
    sizes: dict[str, Any] = {
        "width": width,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads or heads,
        "head_dim": head_dim,
        "hidden": hidden,
    }
    if min(sizes.values()) < 1 or head_dim % 2:
        raise ValueError(f"sizes are {sizes}; expected 1 or more each, and an even head_dim")
    model = SmallModel(DecoderConfig(target.config.vocab, **sizes))
    model.draft_token = None
    initialize(model, torch.initial_seed())
    model.settings = sizes  # type: ignore[assignment]  # no parameter
    return model.to(target.device, target.dtype)


def model_loss(
    head: Decoder,
    target: Decoder,
    batch: TrainingBatch,
    soft: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Cross-entropy at the learned tokens, towards the target's distribution or these."""
    return next_prediction_loss(head, head.through(batch.token[:, :-1]), target, batch, soft)


RECIPE = TrainingRecipe(
    small_model,
    model_loss,
    lambda target, head: ModelDrafter(head),
    "model",
    soft=True,
    reads=lambda head, soft: ("feature",) if soft else (),
)


KIND = DrafterKind(ModelDrafter, ModelDrafter.load, RECIPE, ParallelLanguageModel)

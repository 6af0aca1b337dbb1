"""Drafting by a language model of its own."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from real.draft import Drafter, Pick, Step
from real.model.checkpoint import load_decoder
from real.model.decoder import Decoder
from real.model.draft_head import load_vocabulary
from real.model.draft_vocabulary import DraftVocabularyHead
from real.model.hf_config import WeightsError
from real.model.runner import EAGER
from real.model.span import ForwardContext, Span


class ModelDrafter(Drafter):
    """A decoder with its own KV cache; its proposals depend on the token prefix alone.

    Rows of the backlog (the last draft after a full acceptance, every round of k = 0) enter with
    the next round's first step: the catch-up that a cost model prices.
    """

    name = "model"
    prefix_only = True
    history_free = True
    captures = True

    def __init__(self, lm: Decoder):
        self.lm: Decoder = lm
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "ModelDrafter":
        """From a transformers checkpoint; WeightsError for a vocabulary other than the target's.

        draft_vocabulary.safetensors beside it names the tokens that it drafts from (FR-Spec).
        """
        lm = load_decoder(folder, target.dtype, target.device)
        if lm.config.vocab != target.config.vocab:
            raise WeightsError(
                f"{folder} has {lm.config.vocab} tokens, the target {target.config.vocab}; "
                "use the same tokenizer"
            )
        token = load_vocabulary(Path(folder), lm.config.vocab)
        if token is not None:
            lm.head = DraftVocabularyHead(lm.head, token.to(lm.device))
        return cls(lm)

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.pick = pick
        self.cache = self.passes.cache(self.name, self.lm, len(self.lm.layers), len(prompt) + 64)
        self.committed = list(prompt)
        self.draft: list[int] = []
        self.parent: list[int] = []
        self.rows = 0
        if len(prompt) > 1:
            self._append(prompt[:-1], head=False)

    @torch.inference_mode()
    def next(self) -> Step:
        slot = len(self.draft)
        tokens = self.draft[-1:] if slot else self._backlog()
        hidden, logits = (t[-1] for t in self._append(tokens))
        self.draft.append(self.pick(logits, slot, hidden))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor:
        if not self.parent:
            logits = self._append(self._backlog())[1]
        else:  # rows of a tree follow the root's, and are not counted
            span = Span.tree(self.rows - 1, self.parent + parent, len(token))
            logits = self._forward(token, span, "tree")[1]
        self.parent = self.parent + parent
        return logits

    def rollback(self, accepted: int) -> None:
        # valid rows: those of committed tokens, and of accepted drafts that were fed in turn
        self.rows = min(self.rows, len(self.committed) + accepted)
        self.draft, self.parent = [], []

    def catch_up(self, tokens: list[int], output, path) -> None:
        self.committed += tokens

    def _backlog(self) -> list[int]:
        """Committed tokens without a valid row: at least the last one, recomputed if need be."""
        self.rows = min(self.rows, len(self.committed) - 1)
        return self.committed[self.rows :]

    @torch.inference_mode()
    def _append(self, tokens: list[int], head: bool = True) -> tuple[Tensor, ...]:
        """Hidden states of a chain behind all rows; with `head` also `[1, vocab]` of the last."""
        output = self._forward(tokens, Span(self.rows, len(tokens)), "last" if head else "")
        self.rows += len(tokens)
        return output

    def _forward(self, tokens: list[int], span: Span, head: str) -> tuple[Tensor, ...]:
        lm = self.lm

        def body(token: Tensor, at: ForwardContext) -> tuple[Tensor, ...]:
            x = at.through(lm, lm.embed(token), range(len(lm.layers)))
            return x, *([lm.logits(at.end(x) if head == "last" else x)] if head else ())

        passes = self.passes if head else EAGER  # a prompt's pass has its own number of rows
        return passes.run(f"{self.name} {head}", lm, body, [tokens], span, self.cache)

"""Vanilla drafting: a smaller language model with the target's tokenizer."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from real.block import Decoder, ancestor_mask, branches, chain
from real.draft import Pick, Step
from real.weights import WeightsError, load_decoder


class ModelDrafter:
    """A decoder of its own, with its own cache; what it proposes depends on the token prefix alone.

    Rows that a short round left out (the last draft after a full acceptance, every round of k = 0) enter together with
    the next round's first step: that is the catch-up which a cost model prices.
    """

    name = "model"
    taps = ()
    prefix_only = True
    history_free = True

    def __init__(self, lm: Decoder):
        self.lm = lm
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "ModelDrafter":
        """From a transformers checkpoint whose vocabulary is the target's."""
        lm = load_decoder(folder, target.dtype, target.device)
        if lm.shape.vocab != target.shape.vocab:
            raise WeightsError(f"{folder} has {lm.shape.vocab} tokens, the target {target.shape.vocab}; use the same tokenizer")
        return cls(lm)

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.pick = pick
        self.cache = self.lm.cache(capacity=len(prompt) + 64)
        self.text = list(prompt)
        self.draft: list[int] = []
        self.parent: list[int] = []
        self.rows = 0
        if len(prompt) > 1:
            self._feed(prompt[:-1])

    @torch.inference_mode()
    def next(self) -> Step:
        slot = len(self.draft)
        if not slot:  # the last committed token is read anew where a draft of it was given up unverified
            self.rows = min(self.rows, len(self.text) - 1)
        hidden = self._feed(self.draft[-1:] if slot else self.text[self.rows :])
        logits = self.lm.logits(hidden)
        self.draft.append(self.pick(logits, slot))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor:
        if not self.parent:
            self.rows = min(self.rows, len(self.text) - 1)
            hidden = self._feed(self.text[self.rows :])[None]
        else:  # a tree's rows stand behind the root's, and are not counted
            place = branches(self.rows - 1, self.parent + parent, len(token), self.lm.device)
            hidden = self._through(token, *place, self.rows - 1 + len(self.parent))
        self.parent = self.parent + parent
        return self.lm.logits(hidden)

    def resume(self) -> None:
        return None

    def rollback(self, accepted: int) -> None:
        # valid rows: the text's, and those of accepted drafts that were fed in turn
        self.rows = min(self.rows, len(self.text) + accepted)
        self.draft, self.parent = [], []

    def catch_up(self, tokens: list[int], verdict, path) -> None:
        self.text += tokens

    @torch.inference_mode()
    def _feed(self, tokens: list[int]) -> Tensor:
        start, n = self.rows, len(tokens)
        position = torch.arange(start, start + n, device=self.lm.device)
        x = self._through(tokens, position, ancestor_mask(start, chain(n), self.lm.device), start)
        self.rows += n
        return x[-1]

    def _through(self, tokens: list[int], position: Tensor, mask: Tensor | None, start: int) -> Tensor:
        lm = self.lm
        x = lm.embed(torch.tensor([tokens], device=lm.device))
        return lm.run(x, range(len(lm.layers)), lm.rotation(position), mask, self.cache, start)[0]

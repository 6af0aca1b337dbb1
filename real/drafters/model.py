"""Vanilla drafting: a smaller language model with the target's tokenizer."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from real.draft import Drafter, Pick, Step
from real.model.checkpoint import WeightsError, load_decoder
from real.model.decoder import Decoder
from real.model.runner import EAGER
from real.model.span import ForwardContext, Span


class ModelDrafter(Drafter):
    """A decoder of its own, with its own cache; what it proposes depends on the token prefix alone.

    Rows that a short round left out (the last draft after a full acceptance, every round of k = 0) enter together with
    the next round's first step: that is the catch-up which a cost model prices.
    """

    name = "model"
    taps = ()
    prefix_only = True
    history_free = True
    captures = True

    def __init__(self, lm: Decoder):
        self.lm = lm
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "ModelDrafter":
        """From a transformers checkpoint whose vocabulary is the target's."""
        lm = load_decoder(folder, target.dtype, target.device)
        if lm.config.vocab != target.config.vocab:
            raise WeightsError(
                f"{folder} has {lm.config.vocab} tokens, the target {target.config.vocab}; use the same tokenizer"
            )
        return cls(lm)

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.pick = pick
        self.cache = self.passes.cache(self.name, self.lm, len(self.lm.layers), len(prompt) + 64)
        self.text = list(prompt)
        self.draft: list[int] = []
        self.parent: list[int] = []
        self.rows = 0
        if len(prompt) > 1:
            self._feed(prompt[:-1], head=False)

    @torch.inference_mode()
    def next(self) -> Step:
        slot = len(self.draft)
        if (
            not slot
        ):  # the last committed token is read anew where a draft of it was given up unverified
            self.rows = min(self.rows, len(self.text) - 1)
        hidden, logits = (
            each[-1] for each in self._feed(self.draft[-1:] if slot else self.text[self.rows :])
        )
        self.draft.append(self.pick(logits, slot, hidden))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor:
        if not self.parent:
            self.rows = min(self.rows, len(self.text) - 1)
            logits = self._feed(self.text[self.rows :])[1]
        else:  # a tree's rows stand behind the root's, and are not counted
            logits = self._through(
                token, Span.tree(self.rows - 1, self.parent + parent, len(token)), "tree"
            )[1]
        self.parent = self.parent + parent
        return logits

    def resume(self) -> None:
        return None

    def rollback(self, accepted: int) -> None:
        # valid rows: the text's, and those of accepted drafts that were fed in turn
        self.rows = min(self.rows, len(self.text) + accepted)
        self.draft, self.parent = [], []

    def catch_up(self, tokens: list[int], output, path) -> None:
        self.text += tokens

    @torch.inference_mode()
    def _feed(self, tokens: list[int], head: bool = True) -> tuple[Tensor, ...]:
        """A chain behind the rows there are: hidden rows, and with `head` the logits `[1, vocab]` of the last one."""
        found = self._through(tokens, Span(self.rows, len(tokens)), "last" if head else "")
        self.rows += len(tokens)
        return found

    def _through(self, tokens: list[int], span: Span, head: str) -> tuple[Tensor, ...]:
        lm = self.lm

        def body(token: Tensor, at: ForwardContext) -> tuple[Tensor, ...]:
            x = at.through(lm, lm.embed(token), range(len(lm.layers)))
            return x, *([lm.logits(at.end(x) if head == "last" else x)] if head else ())

        passes = self.passes if head else EAGER  # the prompt's rows, as many as they are
        return passes.run(f"{self.name} {head}", lm, body, [tokens], span, self.cache)

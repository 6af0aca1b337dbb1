"""Drafting by extrapolated features (EAGLE §4, arXiv 2401.15077)."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from real.draft import Drafter, Pick, Step
from real.drafters.eagle.head import EagleHead
from real.drafters.eagle.published import published
from real.model.decoder import Decoder
from real.model.draft_head import load_draft_head
from real.model.runner import EAGER
from real.model.span import ForwardContext, Span


class EagleDrafter(Drafter):
    """Drafts by estimated features; drafted rows re-enter with true ones before the next draft.

    With m committed tokens rows 0 .. m - 2 hold true features, and row m - 2 proposes d_1. Step k
    then feeds the estimate behind d_{k-1}. Every draft row is dropped after verification: the a + 1
    rows of committed tokens enter in the next round's first step, whose price depends on a.

    A proposal depends on its distance from verified tokens, so not `prefix_only`; but for inputs
    "token", which reads no feature. A prompt of one token has no feature: nothing is offered.
    """

    name = "eagle"
    history_free = True
    captures = True

    def __init__(self, target: Decoder, head: EagleHead):
        self.decoder, self.head = target, head
        self.prefix_only = head.inputs == "token"
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "EagleDrafter":
        """From eagle.json and eagle.safetensors, or from a released checkpoint (`published`)."""
        folder = Path(folder)
        if (folder / "config.json").exists() and not (folder / "eagle.json").exists():
            return cls(target, published(folder, target))
        return cls(target, load_draft_head(EagleHead, folder, "eagle", target, made_for))

    @torch.inference_mode()
    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.pick, layers = pick, len(self.head.layers)
        self.cache = self.passes.cache(self.name, self.decoder, layers, len(prompt) + 64)
        self.committed = list(prompt)
        self.estimate: Tensor
        self.draft: list[int] = []
        self.parent: list[int] = []
        self.rows = 0
        # true features of the last committed rows
        self.features = self.decoder.norm(prefill.hidden)
        if len(prompt) > 2:
            tokens = self.committed[self.head.shift :][: len(prompt) - 2]
            self._append(self.features[:-1], tokens, "")

    @torch.inference_mode()
    def next(self) -> Step | None:
        slot, shift = len(self.draft), self.head.shift
        if len(self.committed) == 1:
            return None
        if slot:
            token = [self.committed[-1], *self.draft][slot - 1 + shift :][:1]
            output = self._append(self.estimate[None], token)
        else:
            output = self._first()
        self.estimate, logits = (t[-1] for t in output)
        self.draft.append(self.pick(logits, slot, self.estimate))
        return Step(self.draft[-1], slot, logits, self.estimate)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor | None:
        if len(self.committed) == 1:
            return None
        if not self.parent:
            estimates, logits = self._first()
            self.tree, self.estimates = list(token), estimates[-1:]
        else:
            read = token if self.head.shift else [self.tree[p] for p in parent]
            span = Span.tree(self.rows - 1, self.parent + parent, len(token))
            estimates, logits = self._forward(self.estimates[parent], read, span, "tree")
            self.tree = self.tree + token
            self.estimates = torch.cat((self.estimates, estimates))
        self.parent = self.parent + parent
        return logits

    def rollback(self, accepted: int) -> None:
        # rows of accepted drafts go too: they hold estimates
        self.rows = min(self.rows, len(self.committed) - 1)
        self.draft, self.parent = [], []

    @torch.inference_mode()
    def catch_up(self, tokens: list[int], output, path: list[int]) -> None:
        self.committed += tokens
        self.features = torch.cat((self.features, self.decoder.norm(output.hidden[path])))

    def _first(self) -> tuple[Tensor, ...]:
        """The step behind the last committed token, after the backlog; recomputed if need be."""
        true, shift = len(self.committed) - 1, self.head.shift
        self.rows = min(self.rows, true - 1)
        tokens = self.committed[self.rows + shift : true + shift]
        output = self._append(self.features[self.rows - true :], tokens)
        self.features = self.features[-1:]
        return output

    def _append(self, feature: Tensor, token: list[int], head: str = "last") -> tuple[Tensor, ...]:
        """Estimates of a chain behind all rows; with `head` also `[1, vocab]` of the last."""
        output = self._forward(feature, token, Span(self.rows, len(token)), head)
        self.rows += len(token)
        return output

    def _forward(
        self, feature: Tensor, token: list[int], span: Span, head: str
    ) -> tuple[Tensor, ...]:
        target, eagle = self.decoder, self.head
        output = eagle.output(target)

        def body(feature: Tensor, token: Tensor, at: ForwardContext) -> tuple[Tensor, ...]:
            x = eagle.estimate(
                target, feature[None], token[None], at.rotation, at.mask, at.cache, at.start
            )[0]
            return x, *([output(at.end(x) if head == "last" else x)] if head else ())

        passes = self.passes if head else EAGER  # a prompt's pass has its own number of rows
        return passes.run(f"{self.name} {head}", target, body, [feature, token], span, self.cache)

"""Drafting through the target's own first layers (EESD §3.1-3.2)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from real.draft import Drafter, Pick, Step
from real.drafters.early_exit.head import EarlyExitHead
from real.model.decoder import Decoder
from real.model.draft_head import load_draft_head
from real.model.runner import EAGER
from real.model.span import ForwardContext, Span
from real.model.target import Resume


class EarlyExitDrafter(Drafter):
    """Drafts through the target's first layers, whose rows the verification need not recompute.

    k draft steps feed x_last, d_1 .. d_{k-1} to the shared layers; `verify` takes over from there
    (`resume`) and runs them for d_k only, or for the leaves of a tree. New layers have their own
    cache. Rows of their backlog are read from the target's tap at that depth. Proposals depend on
    the token prefix alone.
    """

    name = "early_exit"
    prefix_only = True
    history_free = True
    captures = True

    def __init__(self, target: Decoder, head: EarlyExitHead):
        self.head = head
        self.taps = (head.depth,)
        self.lm: Decoder = head.as_language_model(target)
        self.sublayers = 2 * head.depth
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "EarlyExitDrafter":
        """From exit.json and exit.safetensors, as `save_draft_head` writes them."""
        return cls(target, load_draft_head(EarlyExitHead, folder, "exit", target, made_for))

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        depth = self.head.depth
        if depth not in target.taps:
            raise ValueError(
                f"the target taps layers {target.taps}; early_exit needs depth {depth} among them"
            )
        self.target, self.pick = target, pick
        self.cache = self.passes.cache(self.name, self.lm, len(self.head.layers), len(prompt) + 64)
        self.rows = 0
        self.last = prompt[-1]
        self.backlog: list[Tensor] = [prefill.taps[depth]]
        self.draft: list[int] = []
        self.hidden: list[Tensor] = []
        self.parent: list[int] = []
        self._run_backlog("")

    @torch.inference_mode()
    def next(self) -> Step:
        slot = len(self.draft)
        if not slot:
            self.start = self.target.length
        token = self.draft[-1] if self.draft else self.last
        shared = self.target.draft_rows([token], slot, self.head.depth)
        self.hidden.append(shared)
        self.backlog.append(shared)
        hidden, logits = (t[-1] for t in self._run_backlog("last"))
        self.draft.append(self.pick(logits, slot, hidden))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor:
        held, self.parent = len(self.parent), self.parent + parent
        shared = self.target.draft_rows(token, held, self.head.depth, self.parent)
        self.hidden.append(shared)
        if not held:
            self.backlog.append(shared)
            return self._run_backlog("last")[1]
        span = Span.tree(self.target.length, self.parent, len(token))
        return self._forward(shared, span, "tree")[1]

    def resume(self, grown: Sequence[int] = ()) -> Resume | None:
        if not self.hidden:
            return None
        return Resume(self.head.depth, torch.cat(self.hidden), tuple(grown))

    def rollback(self, accepted: int) -> None:
        # the target's length counts this round's rows; one of another chain may follow the accepted
        drafted = self.start + 1 + accepted if self.draft else self.rows
        self.rows = min(self.rows, self.target.length, drafted)
        self.draft, self.hidden, self.parent = [], [], []

    def catch_up(self, tokens: list[int], output, path: list[int]) -> None:
        # rows of the new layers that this round's draft left out: from the tap, at the next draft
        missing = self.target.length - self.rows - sum(len(h) for h in self.backlog)
        if missing:
            self.backlog.append(output.taps[self.head.depth][path[-missing:]])
        self.last = tokens[-1]

    @torch.inference_mode()
    def _run_backlog(self, head: str) -> tuple[Tensor, ...]:
        """Output of the new layers for the backlog; with `head` also `[1, vocab]` of the last."""
        x = torch.cat(self.backlog)
        self.backlog = []
        if not len(x):
            return (x,)
        output = self._forward(x, Span(self.rows, len(x)), head)
        self.rows += len(x)
        return output

    def _forward(self, x: Tensor, span: Span, head: str) -> tuple[Tensor, ...]:
        lm, layers = self.lm, self.head.layers

        def body(x: Tensor, at: ForwardContext) -> tuple[Tensor, ...]:
            x = x[None]
            for i, layer in enumerate(layers):
                x = layer(x, at.rotation, at.mask, at.cache, i, at.start)
            x = x[0]
            return x, *([lm.logits(at.end(x) if head == "last" else x)] if head else ())

        passes = self.passes if head else EAGER  # a prompt's pass has its own number of rows
        return passes.run(f"{self.name} {head}", lm, body, [x], span, self.cache)

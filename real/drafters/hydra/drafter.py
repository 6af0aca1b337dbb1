"""Drafting by sequentially dependent heads (Hydra, arXiv 2402.05109)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from real.draft import Drafter, Pick, Step
from real.drafters.hydra.heads import HydraHeads
from real.drafters.hydra.published import published
from real.model.decoder import Decoder
from real.model.draft_head import load_draft_head


class HydraDrafter(Drafter):
    """Drafts one token a head, each head reading the tokens that the heads before it drafted.

    A draft is a function of the feature behind the last committed token, of that token and of
    itself (`history_free`, not `prefix_only`). Nothing is offered behind the last head, or after a
    prompt of one token.
    """

    name = "hydra"
    prefix_only = False
    history_free = True

    def __init__(self, target: Decoder, head: HydraHeads):
        self.decoder, self.head = target, head
        self.max_draft_length: int = len(head.stacks)
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "HydraDrafter":
        """From hydra.json and hydra.safetensors, or from a released checkpoint (`published`)."""
        folder = Path(folder)
        if (folder / "config.json").exists() and not (folder / "hydra.json").exists():
            return cls(target, published(folder, target))
        return cls(target, load_draft_head(HydraHeads, folder, "hydra", target, made_for))

    @torch.inference_mode()
    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.pick, self.last = pick, prompt[-1]
        self.draft: list[int] = []
        self.paths: list[list[int]] = []
        self.feature: Any = self.decoder.norm(prefill.hidden[-1]) if len(prefill.hidden) else None

    @torch.inference_mode()
    def next(self) -> Step | None:
        slot, decoder = len(self.draft), self.decoder
        if self.feature is None or slot == self.max_draft_length:
            return None
        hidden = self._hidden([[self.last, *self.draft]])[0]
        logits = self.head.logits(decoder, slot, hidden)
        self.draft.append(self.pick(logits, slot))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor | None:
        if self.feature is None:
            return None
        new: list[list[int]] = []
        for t, p in zip(token, parent):
            new.append([t] if p < 0 else [*(self.paths + new)[p], t])
        self.paths = self.paths + new
        decoder = self.decoder
        shape = len(new), decoder.config.vocab
        logits = torch.empty(shape, dtype=decoder.dtype, device=decoder.device)
        for length in {len(path) for path in new}:
            rows = [i for i, path in enumerate(new) if len(path) == length]
            hidden = self._hidden([new[i] for i in rows])
            logits[rows] = self.head.logits(decoder, length - 1, hidden)
        return logits

    def rollback(self, accepted: int) -> None:
        self.draft, self.paths = [], []

    @torch.inference_mode()
    def catch_up(self, tokens: list[int], output, path: list[int]) -> None:
        self.feature = self.decoder.norm(output.hidden[path[-1]])
        self.last = tokens[-1]

    def _hidden(self, paths: list[list[int]]) -> Tensor:
        """Output of a stack `[n, width]` behind n paths of one length.

        A path holds the last committed token and the drafts behind it.
        """
        token = torch.tensor(paths, device=self.decoder.device)
        feature = self.feature.expand(len(paths), -1)
        inputs = torch.cat((feature, self.decoder.embed(token).flatten(1)), -1)
        return self.head.stacks[len(paths[0]) - 1](inputs)

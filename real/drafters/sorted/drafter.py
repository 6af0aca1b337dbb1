"""Drafting by the exits of a sorted model: each token leaves at the first confident one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from real.draft import Drafter, Pick, Step
from real.drafters.sorted.cascade import Cascade
from real.drafters.sorted.model import SortedModel, check_exits
from real.model.checkpoint import load_decoder
from real.model.decoder import Decoder
from real.model.hf_config import WeightsError
from real.model.span import ForwardContext, Span


class SortedDrafter(Drafter):
    """A language model that drafts each token by its first confident exit (S2D, arXiv 2407.01955).

    Rows that left early are passed through the deeper layers, not copied, when a later token goes
    there: proposals depend on the token prefix alone, and the catching up is part of the draft's
    time. Layers between two exits are a segment; `rows[e]` are the valid rows of segment e in the
    KV cache, and `waiting[e]` the rows behind them that have passed the segment before.
    """

    name = "sorted"
    prefix_only = True
    history_free = True
    captures = True

    def __init__(self, decoder: SortedModel, cascade: Cascade):
        self.decoder, self.cascade = decoder, cascade
        self.first = (0, *cascade.exits)
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "SortedDrafter":
        """From a transformers checkpoint and sorted.json; WeightsError for another vocabulary."""
        lm = load_decoder(folder, target.dtype, target.device)
        if lm.config.vocab != target.config.vocab:
            raise WeightsError(
                f"{folder} has {lm.config.vocab} tokens, the target {target.config.vocab}; "
                "use the same tokenizer"
            )
        file = Path(folder) / "sorted.json"
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            exits = check_exits(stored["exits"], len(lm.layers))
            if exits[-1] != len(lm.layers):
                raise ValueError(f"its last exit is {exits[-1]} of {len(lm.layers)} layers")
            cascade = Cascade(exits, stored["thresholds"])
        except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise WeightsError(
                f"{file} holds no exits of a sorted drafter: {' '.join(str(error).split())[:300]}"
            ) from error
        return cls(SortedModel.of(lm, exits), cascade)

    def with_thresholds(self, threshold: Sequence[float]) -> "SortedDrafter":
        """The same exits at other thresholds; ValueError for unfit ones."""
        other = SortedDrafter(self.decoder, Cascade(self.cascade.exits, threshold))
        other.passes, other.predictors = self.passes, self.predictors
        return other

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        lm, self.pick = self.decoder, pick
        self.cache = self.passes.cache(self.name, lm, len(lm.layers), len(prompt) + 64)
        self.committed = list(prompt)
        self.draft: list[int] = []
        self.parent: list[int] = []
        self.taken: list[int] = []
        self.rows = [0] * len(self.cascade.exits)
        empty = lm.embed.weight[:0].detach()
        self.waiting = [empty] * len(self.rows)
        if len(prompt) > 1:
            self._pass_all(prompt[:-1])

    @torch.inference_mode()
    def next(self) -> Step:
        slot = len(self.draft)
        tokens = self.draft[-1:] if slot else self._backlog()
        self._embed(tokens)
        for exit in range(len(self.rows)):
            hidden = self._segment(exit)[-1]
            logits = self.decoder.logits(hidden)
            if self.cascade.leaves(exit, logits):
                break
        self.taken.append(exit)
        self.draft.append(self.pick(logits, slot, hidden))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor:
        if not self.parent:
            hidden = [rows[-1:] for rows in self._pass_all(self._backlog())]
        else:  # rows of a tree follow the root's, and are not counted
            span = Span.tree(self.rows[0] - 1, self.parent + parent, len(token))
            x, hidden = self.decoder.embed(torch.tensor(token, device=self.decoder.device)), []
            for exit in range(len(self.rows)):
                x = self._run(exit, x, span)
                hidden.append(x)
        self.parent = self.parent + parent
        return self.cascade.choose(self.decoder, hidden)[0]

    def rollback(self, accepted: int) -> None:
        self._truncate(len(self.committed) + accepted)
        self.draft, self.parent, self.taken = [], [], []

    def catch_up(self, tokens: list[int], output, path) -> None:
        self.committed += tokens

    def _backlog(self) -> list[int]:
        """Committed tokens without a row of the first segment: at least the last one."""
        self._truncate(len(self.committed) - 1)
        return self.committed[self.rows[0] :]

    def _truncate(self, valid: int) -> None:
        """Keeps the first `valid` rows of every segment, and of those that wait."""
        self.rows = [min(rows, valid) for rows in self.rows]
        for exit in range(1, len(self.rows)):
            self.waiting[exit] = self.waiting[exit][: self.rows[exit - 1] - self.rows[exit]]

    def _embed(self, tokens: list[int]) -> None:
        token = torch.tensor(tokens, device=self.decoder.device)
        self.waiting[0] = self.decoder.embed(token)

    def _pass_all(self, tokens: list[int]) -> list[Tensor]:
        """Output of every segment, with all rows that wait."""
        self._embed(tokens)
        return [self._segment(exit) for exit in range(len(self.rows))]

    @torch.inference_mode()
    def _segment(self, exit: int) -> Tensor:
        """Passes the rows that wait for a segment; they then wait for the next one."""
        x = self._run(exit, self.waiting[exit], Span(self.rows[exit], len(self.waiting[exit])))
        self.rows[exit] += len(x)
        self.waiting[exit] = x[:0]
        if exit + 1 < len(self.rows):
            self.waiting[exit + 1] = torch.cat((self.waiting[exit + 1], x))
        return x

    def _run(self, exit: int, x: Tensor, span: Span) -> Tensor:
        lm, layers = self.decoder, range(self.first[exit], self.first[exit + 1])

        def body(x: Tensor, at: ForwardContext) -> tuple[Tensor, ...]:
            return (at.through(lm, x, layers),)

        return self.passes.run(f"{self.name} {exit}", lm, body, [x], span, self.cache)[0]

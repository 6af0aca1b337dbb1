"""The target: a decoder, its cache, and passes over lines or trees of drafted tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.model.runner import EAGER, At, EagerPasses, Span


@dataclass(frozen=True)
class Resume:
    """Rows of a verification pass that a drafter has already taken through the target's first layers.

    | field | meaning |
    | --- | --- |
    | layer | layers 0 .. layer - 1 are done, their keys lie in the target's cache at the rows' places |
    | hidden `[m, width]` | the residual stream of the pass's first m rows after them |
    """

    layer: int
    hidden: Tensor


@dataclass(frozen=True)
class TargetOutput:
    """What one pass of the target returns.

    | field | meaning |
    | --- | --- |
    | logits `[n, vocab]` | prediction after each row; None from `prefill` |
    | hidden `[n, width]` | residual stream after the last layer, before the norm |
    | taps | layer -> `[n, width]`: residual stream after that many layers, for the layers asked for |
    """

    logits: Tensor | None
    hidden: Tensor
    taps: dict[int, Tensor]


class Target:
    """A decoder that verifies: batch of one, one cache, `length` committed rows.

    `taps` names the depths (in layers) whose residual stream a drafter wants to read, `passes` how its passes are run.
    """

    def __init__(
        self,
        decoder: Decoder,
        taps: tuple[int, ...] = (),
        capacity: int = 512,
        passes: EagerPasses = EAGER,
    ):
        self.decoder, self.taps, self.passes = decoder, taps, passes
        self.cache = passes.cache("target", decoder, len(decoder.layers), capacity)
        self.length = 0

    @torch.inference_mode()
    def prefill(self, tokens: list[int]) -> TargetOutput:
        """Starts a text: forgets the old one and fills the cache with `tokens` (all of the prompt but its last)."""
        self.length = 0
        if not tokens:
            empty = torch.zeros(
                0, self.decoder.config.width, dtype=self.decoder.dtype, device=self.decoder.device
            )
            return TargetOutput(None, empty, {layer: empty for layer in self.taps})
        _, hidden, taps = self._layers(
            tokens, Span(0, len(tokens)), 0, len(self.decoder.layers), False, EAGER
        )
        self.length = len(tokens)
        return TargetOutput(None, hidden, taps)

    @torch.inference_mode()
    def verify(
        self, tokens: list[int], parent: list[int], resume_from: Resume | None = None
    ) -> TargetOutput:
        """One pass over the round's rows: the last committed token and what was drafted after it.

        `parent[i]` is the row that row i follows, -1 for the committed prefix. Rows are written behind the committed
        ones and stay tentative until `keep`. With `resume_from`, its rows skip the layers that they have passed.
        """
        if len(parent) != len(tokens):
            raise ValueError(f"{len(parent)} parents for {len(tokens)} tokens; expected one each")
        span, layers = Span.tree(self.length, parent), len(self.decoder.layers)
        if resume_from is None or not len(resume_from.hidden):
            return TargetOutput(*self._layers(tokens, span, 0, layers, True))
        x, first = resume_from.hidden, resume_from.layer
        if len(x) < len(tokens):
            # the rows that the drafter has not seen catch up through the layers it owns
            late = tokens[len(x) :]
            x = torch.cat(
                (
                    x,
                    self._layers(late, Span.tree(self.length, parent, len(late)), 0, first, False)[
                        1
                    ],
                )
            )
        logits, hidden, taps = self._layers(x, span, first, layers, True)
        return TargetOutput(
            logits, hidden, {layer: x if layer == first else taps.get(layer) for layer in self.taps}
        )

    @torch.inference_mode()
    def draft_rows(
        self, tokens: list[int], offset: int, layer: int, parent: list[int] | None = None
    ) -> Tensor:
        """Takes `tokens` (a line) through the first `layer` layers, `offset` rows past the committed ones.

        Their keys go to where `verify` will find them; returns the residual stream `[n, width]`. With `parent`, that of all the
        `offset` + n rows past the committed ones, they are a tree's: each sees its ancestors only.
        """
        rows = len(tokens)
        span = (
            Span(self.length + offset, rows)
            if parent is None
            else Span.tree(self.length, parent, rows)
        )
        return self._layers(tokens, span, 0, layer, False)[1]

    @torch.inference_mode()
    def commit(self, path: list[int]) -> None:
        """Commits the rows `path` of the last pass (indices, each the parent of the next), and forgets the others."""
        if path != list(range(len(path))):
            rows = torch.tensor(path, device=self.decoder.device) + self.length
            self.cache.move(rows, self.length)
        self.length += len(path)

    def _layers(
        self, x, span: Span, first: int, last: int, judge: bool, passes: EagerPasses | None = None
    ) -> tuple[Tensor | None, Tensor, dict[int, Tensor]]:
        """Tokens (or hidden rows, where `first` > 0) through the layers first .. last - 1: logits if `judge`, hidden rows, taps between."""
        decoder, names = self.decoder, [layer for layer in self.taps if first < layer <= last]

        def body(x: Tensor, at: At) -> tuple[Tensor, ...]:
            taps: dict[int, Tensor] = {layer: None for layer in names}
            x = at.through(decoder, x if first else decoder.embed(x), range(first, last), taps)
            # taps hold what `through` makes, one batch of rows
            return x, *(taps[layer][0] for layer in names), *([decoder.logits(x)] if judge else ())

        name = f"target {first}-{last}{' judged' if judge else ''}"
        hidden, *rest = (passes or self.passes).run(name, decoder, body, [x], span, self.cache)
        return rest[-1] if judge else None, hidden, dict(zip(names, rest))

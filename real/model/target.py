"""The target: a decoder with its KV cache, and verification passes over chains or trees of drafted
tokens."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.model.runner import EAGER, EagerPasses, Input
from real.model.span import ForwardContext, Span


@dataclass(frozen=True)
class Resume:
    """Rows of a verification pass that a drafter has already passed through the target's first
    layers.

    | field | meaning |
    | --- | --- |
    | layer | layers 0 .. layer - 1 are done; their keys are in the target's cache at the rows' \
places |
    | hidden `[m, width]` | the residual stream of the pass's first m rows after these layers |
    """

    layer: int
    hidden: Tensor


@dataclass(frozen=True)
class TargetOutput:
    """The output of one pass of the target.

    | field | meaning |
    | --- | --- |
    | logits `[n, vocab]` | prediction after each row; None from `prefill` |
    | hidden `[n, width]` | residual stream after the last layer, before the norm |
    | taps | layer -> `[n, width]`: residual stream after that many layers, for the target's taps |
    """

    logits: Tensor | None
    hidden: Tensor
    taps: dict[int, Tensor]


class Target:
    """A decoder that verifies drafts: one sequence, one KV cache, `length` committed rows.

    `taps` lists the depths, in layers, whose residual stream a drafter reads; `passes` is the
    engine.
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
        """Starts a sequence: fills the cache with `tokens`, the prompt without its last token."""
        self.length = 0
        self.decoder.check_length(len(tokens))
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
        """One pass over the round's rows: the last committed token and the drafted ones.

        `parent[i]` is the row that row i follows, -1 for the committed prefix. Rows remain
        tentative until `commit`. With `resume_from`, its rows skip the layers that they have
        passed.
        """
        if len(parent) != len(tokens):
            raise ValueError(f"{len(parent)} parents for {len(tokens)} tokens; expected one each")
        self.decoder.check_length(self.length + 1)  # drafted rows beyond it are never committed
        span, layers = Span.tree(self.length, parent), len(self.decoder.layers)
        if resume_from is None or not len(resume_from.hidden):
            return TargetOutput(*self._layers(tokens, span, 0, layers, True))
        x, first = resume_from.hidden, resume_from.layer
        if len(x) < len(tokens):
            # rows that the drafter has not passed catch up through its layers
            rest = tokens[len(x) :]
            behind = Span.tree(self.length, parent, len(rest))
            x = torch.cat((x, self._layers(rest, behind, 0, first, False)[1]))
        logits, hidden, taps = self._layers(x, span, first, layers, True)
        if first in self.taps:
            taps[first] = x
        return TargetOutput(logits, hidden, taps)

    @torch.inference_mode()
    def draft_rows(
        self, tokens: list[int], offset: int, layer: int, parent: list[int] | None = None
    ) -> Tensor:
        """Passes `tokens` through the first `layer` layers, `offset` rows past the committed ones.

        Returns the residual stream `[n, width]`; the keys are where `verify` expects them. The
        tokens are a chain, or with `parent`, that of all `offset` + n rows, the last rows of a
        tree.
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
        """Commits the rows `path` of the last pass, each the parent of the next, and drops the
        others."""
        if path != list(range(len(path))):
            rows = torch.tensor(path, device=self.decoder.device) + self.length
            self.cache.move(rows, self.length)
        self.length += len(path)

    def _layers(
        self,
        x: Input,
        span: Span,
        first: int,
        last: int,
        with_logits: bool,
        passes: EagerPasses | None = None,
    ) -> tuple[Tensor | None, Tensor, dict[int, Tensor]]:
        """Passes tokens (hidden rows where `first` > 0) through layers first .. last - 1: (logits
        or None, hidden, taps)."""
        decoder, names = self.decoder, [layer for layer in self.taps if first < layer <= last]

        def body(x: Tensor, context: ForwardContext) -> tuple[Tensor, ...]:
            taps: dict[int, Tensor | None] = dict.fromkeys(names)
            x = x if first else decoder.embed(x)
            x = context.through(decoder, x, range(first, last), taps)
            # `through` fills each tap, with a batch dimension of one
            tapped = (cast(Tensor, taps[layer])[0] for layer in names)
            return x, *tapped, *([decoder.logits(x)] if with_logits else ())

        name = f"target {first}-{last}{' with logits' if with_logits else ''}"
        hidden, *rest = (passes or self.passes).run(name, decoder, body, [x], span, self.cache)
        return rest[-1] if with_logits else None, hidden, dict(zip(names, rest))

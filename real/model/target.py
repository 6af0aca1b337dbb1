"""The target: a decoder with its KV cache, and verification passes over chains or trees of drafted
tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.model.passes import EAGER, EagerPasses, ForwardContext, Input, Span


@dataclass(frozen=True)
class Resume:
    """Rows of a verification pass that a drafter has already passed through the target's first
    layers.
    """

    layer: int  # layers 0 .. layer - 1 are done; their keys are the target's next m cache rows
    hidden: Tensor  # [m, width]: the residual stream of m rows after these layers
    # the row of the pass that each is, parents first; -1: none. (): its first m
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class TargetOutput:
    """The output of one pass of the target."""

    logits: Tensor | None  # [n, vocab]: prediction after each row; None from prefill
    hidden: Tensor  # [n, width]: residual stream after the last layer, before the norm
    # layer -> [n, width]: residual stream after that many layers, for the target's taps
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
        self.place: list[int] = []
        self._repeats = False
        self._prefilled: tuple[list[int], TargetOutput] | None = None

    @contextmanager
    def repeating_prompt(self) -> Iterator[None]:
        """Within it, a prefill of the same tokens as the one before only goes back to its end.

        Committed rows stay in the cache, so that later rounds are the same.
        """
        self._repeats = True
        try:
            yield
        finally:
            self._repeats, self._prefilled = False, None

    @torch.inference_mode()
    def prefill(self, tokens: list[int]) -> TargetOutput:
        """Starts a sequence: fills the cache with `tokens`, the prompt without its last token."""
        if self._prefilled is None or self._prefilled[0] != tokens:
            self._prefilled = None  # also where this pass fails
            output = self._prefill(tokens)
            self._prefilled = (list(tokens), output) if self._repeats else None
            return output
        self.length = len(tokens)
        return self._prefilled[1]

    def _prefill(self, tokens: list[int]) -> TargetOutput:
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
        passed; in the cache they come first.
        """
        self.decoder.check_length(self.length + 1)  # drafted rows beyond it are never committed
        self.place = list(range(len(tokens)))
        if resume_from is None or not len(resume_from.hidden):
            span = Span.tree(self.length, parent)
            return TargetOutput(*self._layers(tokens, span, 0, len(self.decoder.layers), True))
        if not resume_from.rows or resume_from.rows == tuple(range(len(resume_from.hidden))):
            return self._resumed(tokens, parent, resume_from.layer, resume_from.hidden)
        return self._reordered(tokens, parent, resume_from)

    def _resumed(self, tokens: list[int], parent: list[int], first: int, x: Tensor) -> TargetOutput:
        """Continues verification from `x`, the first rows after `first` layers."""
        span, layers = Span.tree(self.length, parent), len(self.decoder.layers)
        if len(x) < len(tokens):
            # rows that the drafter has not passed catch up through its layers
            rest = tokens[len(x) :]
            behind = Span.tree(self.length, parent, len(rest))
            x = torch.cat((x, self._layers(rest, behind, 0, first, False)[1]))
        logits, hidden, taps = self._layers(x, span, first, layers, True)
        if first in self.taps:
            taps[first] = x
        return TargetOutput(logits, hidden, taps)

    def _reordered(self, tokens: list[int], parent: list[int], passed: Resume) -> TargetOutput:
        """Verifies in an order that starts with the rows that have passed some layers."""
        kept = [i for i, row in enumerate(passed.rows) if row >= 0]
        order = [passed.rows[i] for i in kept]
        order += sorted(set(range(len(tokens))) - set(order))
        for place, row in enumerate(order):
            self.place[row] = place
        hidden, device = passed.hidden, self.decoder.device
        if len(kept) < len(hidden):
            of = torch.tensor(kept, device=device)
            self.cache.move(of + self.length, self.length)
            hidden = hidden[of]
        above = [parent[row] for row in order]
        output = self._resumed(
            [tokens[row] for row in order],
            [-1 if row < 0 else self.place[row] for row in above],
            passed.layer,
            hidden,
        )
        back = torch.tensor(self.place, device=device)
        assert output.logits is not None  # only a prefill has none
        taps = {layer: rows[back] for layer, rows in output.taps.items()}
        return TargetOutput(output.logits[back], output.hidden[back], taps)

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
        places = [self.place[row] for row in path]
        if places != list(range(len(path))):
            rows = torch.tensor(places, device=self.decoder.device) + self.length
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

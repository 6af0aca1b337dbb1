"""Eager execution of passes: any number of rows, every kernel launched from Python."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.model.kv_cache import KVCache
from real.model.span import ForwardContext, Span

Input = Tensor | Sequence[int]
"""An input of a pass: a tensor `[n, ...]`, or n tokens."""
Body = Callable[..., tuple[Tensor, ...]]
"""(*inputs `[n, ...]`, ForwardContext) -> tensors whose first dimension is n, or 1."""


class EagerPasses:
    """Runs passes eagerly; base class of the engines."""

    widths: tuple[int, ...] = ()
    smallest = 0

    @property
    def name(self) -> str:
        """The engine."""
        return "eager"

    def cache(self, name: str, decoder: Decoder, layers: int, rows: int) -> KVCache:
        """A KV cache for the owner `name`, with initial room for `rows` rows."""
        return decoder.cache(layers, capacity=rows)

    def run(
        self,
        name: str,
        decoder: Decoder,
        body: Body,
        inputs: Sequence[Input],
        span: Span,
        cache: KVCache,
    ) -> tuple[Tensor, ...]:
        """Runs `body` on the rows of `span`; `name` identifies the body."""
        position, mask = span.places(decoder.device)
        cache.reserve(span.start + span.rows)
        context = ForwardContext(decoder.rotation(position), mask, cache, span.start, span.rows - 1)
        return body(*(_tensor(x, decoder.device) for x in inputs), context)

    def call(
        self, name: str, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """Runs a function of tensors that writes no cache."""
        return function(*inputs)

    def warm(self) -> None:
        """Prepares between two sequences whatever is otherwise prepared on first use."""


EAGER = EagerPasses()


def _tensor(x: Input, device: torch.device) -> Tensor:
    return x if isinstance(x, Tensor) else torch.tensor(x, device=device)

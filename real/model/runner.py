"""Eager passes: any number of rows, where they are, and which rows each attends to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.model.kv_cache import KVCache, StaticKVCache


def chain(rows: int) -> list[int]:
    """Parents of `rows` rows in one line: -1, 0, 1, ... (-1 is the last row already in the
    cache)."""
    return list(range(-1, rows - 1))


def depths(parent: list[int]) -> list[int]:
    """Depth of each row of a tree below the cached prefix, 0 for its children; parents come before
    children."""
    depth: list[int] = []
    for i, p in enumerate(parent):
        if not -1 <= p < i:
            raise ValueError(
                f"parent[{i}] is {p}; expected -1 (the cached prefix) or an earlier row"
            )
        depth.append(0 if p < 0 else depth[p] + 1)
    return depth


def ancestor_mask(start: int, parent: list[int], device=None) -> Tensor | None:
    """Bool mask `[n, start + n]`: a row sees the cached prefix, its ancestors and itself; None
    where it sees all."""
    rows = len(parent)
    if rows == 1:
        return None
    if parent == chain(rows):
        return torch.ones(rows, start + rows, dtype=torch.bool, device=device).tril(start)
    sees = torch.zeros(rows, start + rows, dtype=torch.bool)
    sees[:, :start] = True
    for i, p in enumerate(parent):
        if p >= 0:
            sees[i] = sees[p]
        sees[i, start + i] = True
    return sees.to(device)


def branches(base: int, parent: list[int], rows: int, device=None) -> tuple[Tensor, Tensor]:
    """Positions `[rows]` and attention mask of the last `rows` rows of a tree.

    Row 0 of the tree is the text's row `base`.

    `parent` is that of all the tree's rows, -1 for row 0; the mask, bool `[rows, base +
    len(parent)]`, is `ancestor_mask`'s part.
    """
    first = len(parent) - rows
    depth = depths(parent)[first:]
    sees = ancestor_mask(base, parent, device)
    if sees is None:
        sees = torch.ones(1, base + 1, dtype=torch.bool, device=device)
    return base + torch.tensor(depth, device=device), sees[first:]


@dataclass(frozen=True)
class Span:
    """The rows of a pass, by their places in the cache.

    | field | meaning |
    | --- | --- |
    | start | cache rows before the first row |
    | rows | number of rows |
    | parent | None for a chain, where each row follows the one before. For a tree: the parent of \
each of its rows, -1 for row 0; the span covers the last `rows` of them |
    """

    start: int
    rows: int
    parent: tuple[int, ...] | None = None

    @classmethod
    def tree(cls, base: int, parent: Sequence[int], rows: int | None = None) -> "Span":
        """The last `rows` rows (all by default) of a tree after `base` cached rows; a chain-shaped
        tree becomes a chain."""
        rows = len(parent) if rows is None else rows
        start = base + len(parent) - rows
        return cls(start, rows, None if list(parent) == chain(len(parent)) else tuple(parent))

    @property
    def base(self) -> int:
        """Cache rows before the chain, or before the tree's row 0."""
        return self.start + self.rows - len(self.parent or [0] * self.rows)

    def places(self, device: torch.device | str) -> tuple[Tensor, Tensor | None]:
        """Positions int64 `[rows]` and the attention mask bool `[rows, start + rows]`; None where
        every row sees all."""
        if self.parent is not None:
            return branches(self.base, list(self.parent), self.rows, device)
        position = torch.arange(self.start, self.start + self.rows, device=device)
        return position, ancestor_mask(self.start, chain(self.rows), device)


@dataclass(frozen=True)
class ForwardContext:
    """Context that a pass's body receives with its inputs: rotation, mask and cache of its rows.

    | field | meaning |
    | --- | --- |
    | rotation | cosines and sines of the rows' positions |
    | mask | attention mask; None where every row sees all |
    | cache, start | the KV cache, and the cache row of the first row |
    | last | index of the last row that is not padding |
    """

    rotation: tuple[Tensor, Tensor]
    mask: Tensor | None
    cache: KVCache | StaticKVCache
    start: int
    last: int | Tensor

    def through(
        self,
        decoder: Decoder,
        x: Tensor,
        layers: range,
        taps: dict[int, Tensor | None] | None = None,
    ) -> Tensor:
        """Passes rows `x [n, width]` through some of a decoder's layers."""
        out = decoder.run(x[None], layers, self.rotation, self.mask, self.cache, self.start, taps)
        return out[0]

    def end(self, x: Tensor) -> Tensor:
        """The last row of `x` that is not padding, `[1, ...]`."""
        if isinstance(self.last, Tensor):
            return x.index_select(0, self.last)
        return x[self.last : self.last + 1]


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
        cache.reserve(span.start + span.rows)
        if span.parent is None:
            rotation = decoder.chain_rotation(span.start, span.rows)
            mask = ancestor_mask(span.start, chain(span.rows), decoder.device)
        else:
            position, mask = span.places(decoder.device)
            rotation = decoder.rotation(position)
        context = ForwardContext(rotation, mask, cache, span.start, span.rows - 1)
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

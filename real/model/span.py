"""Where the rows of a pass are: cache rows, positions, and the rows that each attends to."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from real.model.decoder import Decoder
from real.model.kv_cache import KVCache, StaticKVCache
from real.model.tree_mask import ancestor_mask, branches, chain


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
        """The last `rows` rows (all by default) of a tree behind `base` cached rows; a chain-shaped
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
    """What a pass's body receives beside its inputs: rotation, mask and cache of its rows.

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

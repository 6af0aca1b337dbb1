"""Passes of a decoder: rows of chains and trees, whole sequences, and caches of several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from real.model.decoder import Decoder, KVCache, StaticKVCache


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
    """The rows of a pass, by their places in the cache."""

    start: int  # cache rows before the first row
    rows: int
    # None for a chain, where each row follows the one before. For a tree: the parent of each of its
    # rows, -1 for row 0; the span covers the last `rows` of them
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
    """Context that a pass's body receives with its inputs: rotation, mask and cache of its rows."""

    rotation: tuple[Tensor, Tensor]  # cosines and sines of the rows' positions
    mask: Tensor | None  # attention mask; None where every row sees all
    # cache, start: the KV cache, and the cache row of the first row
    cache: KVCache | StaticKVCache
    start: int
    last: int | Tensor  # index of the last row that is not padding

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
        return body(*(torch.as_tensor(x, device=decoder.device) for x in inputs), context)

    def warm(self) -> None:
        """Prepares between two sequences whatever is otherwise prepared on first use."""


EAGER = EagerPasses()


def causal_mask(rows: int, device) -> Tensor:
    """Bool `[rows, rows]`: each row attends to itself and to those before it."""
    return torch.ones(rows, rows, dtype=torch.bool, device=device).tril()


def full_pass(lm: Decoder, token: Tensor) -> tuple[Tensor, KVCache]:
    """Last hidden states `[m, width]` of one pass over `token [m]`, and its KV cache."""
    m = len(token)
    cache = lm.cache(capacity=m)
    rotation = lm.rotation(torch.arange(m, device=token.device))
    mask = causal_mask(m, token.device)
    return lm.run(lm.embed(token[None]), range(len(lm.layers)), rotation, mask, cache)[0], cache


class TargetPass:
    """A recorded sequence as its target reads it, computed in one pass on first use.

    Its rows are the prompt and all new tokens but the last, `token` int64 `[m]`; `hidden`
    `[m, width]` and `cache` are the target's of these rows.
    """

    def __init__(self, target: Decoder, prompt: list[int], new_tokens: list[int]):
        self.target, self.prompt_length = target, len(prompt)
        self.token = torch.tensor([*prompt, *new_tokens[:-1]], device=target.device)

    @cached_property
    def _states(self) -> tuple[Tensor, KVCache]:
        return full_pass(self.target, self.token)

    @property
    def hidden(self) -> Tensor:
        return self._states[0]

    @property
    def cache(self) -> KVCache:
        return self._states[1]

    def before(self, position: Tensor) -> Tensor:
        """States `[n, width]` that produced the token before each of `position [n]`.

        Positions count new tokens; zeros in front of the prompt's first token.
        """
        row = position + self.prompt_length - 2
        return self.hidden[row.clamp(min=0)] * (row >= 0)[:, None]


class BranchCache:
    """A `KVCache` to the layers: m branches, each after its own prefix of one cached sequence.

    Branch i attends to the first `prefix [m]` rows of the sequence's cache, and, among its
    own rows, to the ancestors of the newest ones.
    """

    def __init__(self, sequence: KVCache, rows: int, prefix: Tensor):
        self.sequence, self.rows, self.prefix = sequence, rows, prefix
        self.layers: dict[int, list[Tensor]] = {}
        self.ancestors = torch.zeros(len(prefix), 1, 0, dtype=torch.bool, device=prefix.device)
        self.depth = -1
        self.visible = (torch.arange(rows, device=prefix.device) < prefix[:, None])[:, None]

    def step(self, parent: Tensor, decoder: Decoder) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Rotation and mask of the next rows, children of rows `parent [m, n]` of the last step.

        All parents of the first step are 0.
        """
        (m, n), held = parent.shape, self.ancestors.shape[2]
        above = self.ancestors.gather(1, parent[..., None].expand(m, n, held))
        new = torch.eye(n, dtype=torch.bool, device=parent.device).expand(m, n, n)
        self.ancestors = torch.cat((above, new), 2)
        self.depth += 1
        position = (self.prefix + self.depth)[:, None].expand(m, n).flatten()
        cosine, sine = (t.view(m, 1, n, -1) for t in decoder.rotation(position))
        mask = torch.cat((self.visible.expand(m, n, -1), self.ancestors), 2)[:, None]
        return (cosine, sine), mask

    def reserve(self, rows: int) -> None:
        """Does nothing: `put` grows the cache."""

    def put(self, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Appends rows `[m, kv_heads, n, head_dim]` of a layer; returns the branches' own rows."""
        held, new = self.ancestors.shape[2], key.shape[2]
        if layer not in self.layers:
            self.layers[layer] = [F.pad(t, (0, 0, 0, 15 * new)) for t in (key, value)]
        rows = self.layers[layer]
        if held > rows[0].shape[2]:
            rows[:] = [F.pad(t, (0, 0, 0, held)) for t in rows]
        for t, added in zip(rows, (key, value)):
            t[:, :, held - new : held] = added
        return rows[0][:, :, :held], rows[1][:, :, :held]

    def attention(self, layer: int, q: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Attention of `q [m, heads, n, head_dim]` to the sequence's rows and to branches' own.

        The sequence's rows are read in one product for all branches, never copied to each.
        """
        (m, heads, n, width), kv_heads = q.shape, key.shape[1]
        shared_key, shared_value = (
            t[layer, 0, :, : self.rows] for t in (self.sequence.key, self.sequence.value)
        )
        grouped = q.reshape(m, kv_heads, -1, width) * width**-0.5
        together = grouped.transpose(0, 1).reshape(kv_heads, -1, width)
        of_sequence = (together @ shared_key.transpose(1, 2)).view(kv_heads, m, -1, self.rows)
        of_branch = (grouped @ key.transpose(2, 3)).transpose(0, 1)
        scores = torch.cat((of_sequence, of_branch), -1).unflatten(2, (-1, n))
        scores = scores.masked_fill_(~mask.transpose(0, 1)[:, :, None], -torch.inf)
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        weight = scores.softmax(-1, dtype=wide).to(q.dtype).flatten(2, 3)
        of_sequence, of_branch = weight.split((self.rows, key.shape[2]), -1)
        mixed = (of_sequence.flatten(1, 2) @ shared_value).view(kv_heads, m, -1, width)
        mixed = mixed.transpose(0, 1) + of_branch.transpose(0, 1) @ value
        return mixed.reshape(m, heads, n, width)


class RaggedKVCache:
    """A `KVCache` to the layers, `[layers, slots, kv_heads, capacity, head_dim]`: one sequence a
    slot, each with its own number of cached rows; the first `len(length)` slots are in use."""

    def __init__(self, decoder: Decoder, slots: int, capacity: int):
        whole = decoder.cache(batch=slots, capacity=capacity)
        self.key, self.value = whole.key, whole.value
        self.length: list[int] = []

    def admit(self, prefilled: KVCache, lengths: list[int]) -> None:
        """Gives each row of a prefilled batch the next free slot; it has `lengths` valid rows."""
        first = len(self.length)
        slots, longest = slice(first, first + len(lengths)), max(lengths)
        for own, new in ((self.key, prefilled.key), (self.value, prefilled.value)):
            own[:, slots, :, :longest] = new[:, :, :, :longest]
        self.length += lengths

    def drop(self, slot: int) -> None:
        """Frees a slot; the sequence of the last used slot moves into it."""
        last = len(self.length) - 1
        if slot < last:
            for t in (self.key, self.value):
                t[:, slot, :, : self.length[last]] = t[:, last, :, : self.length[last]]
        self.length[slot] = self.length[last]
        self.length.pop()

    def fit(self, slots: int, rows: int) -> None:
        """Grows, by doubling, to at least `slots` slots of `rows` rows; stored rows stay."""
        pairs = (rows, self.key.shape[3]), (slots, self.key.shape[1])
        longer, wider = (max(need - now, now) if need > now else 0 for need, now in pairs)
        if longer or wider:
            pad = 0, 0, 0, longer, 0, 0, 0, wider
            self.key, self.value = F.pad(self.key, pad), F.pad(self.value, pad)

    def step(
        self, decoder: Decoder, slots: Sequence[int] = (), rows: Sequence[int] = ()
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Rotation and mask of the next row of every sequence, which `put` then writes.

        Or of the next `rows` of some `slots`, ascending, all padded at their end to the most.
        """
        device, slots = self.key.device, slots or range(len(self.length))
        rows = rows or [1] * len(slots)
        start = torch.tensor([self.length[slot] for slot in slots], device=device)
        self.row = start[:, None] + torch.arange(max(rows), device=device)
        self.slot = torch.tensor(slots, device=device)[:, None]
        self.stop = max(self.length[slot] for slot in slots) + max(rows)
        apart = slots[-1] - slots[0] >= len(slots)  # then `put` copies their rows
        self.slots = list(slots) if apart else slice(slots[0], slots[-1] + 1)
        shape = len(slots), 1, max(rows), -1
        cosine, sine = (t.view(shape) for t in decoder.rotation(self.row.flatten()))
        visible = torch.arange(self.stop, device=device) <= self.row[..., None]
        for slot, count in zip(slots, rows):
            self.length[slot] += count
        return (cosine, sine), visible[:, None]

    def reserve(self, rows: int) -> None:
        """Does nothing: a slot has room for its sequence's last row."""

    def put(self, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Writes rows `[b, kv_heads, n, head_dim]` after those of each sequence of the step;
        returns the rows of these sequences up to the longest."""
        rows = []
        for own, new in ((self.key[layer], key), (self.value[layer], value)):
            own[self.slot, :, self.row] = new.transpose(1, 2)
            rows.append(own[self.slots, :, : self.stop])
        return rows[0], rows[1]

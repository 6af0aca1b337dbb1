"""Passes: how rows go through a decoder's layers. Eagerly, of any number; or padded to few widths, captured once for each.

Target and drafters say what a pass computes (`body`) and where its rows stand (`Span`); what runs it is theirs to be given.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from real.model.cuda_graphs import Replay, capture, compiled_layers
from real.model.decoder import Decoder
from real.model.kv_cache import KVCache, StaticKVCache
from real.model.tree_mask import ancestor_mask, branches, chain, depths

Input = Tensor | Sequence[int]
"""Rows of a pass: a tensor `[n, ...]`, or n tokens."""


@dataclass(frozen=True)
class Span:
    """Where the rows of a pass stand.

    | field | meaning |
    | --- | --- |
    | start | rows of the cache in front of the first one |
    | rows | how many |
    | parent | of a tree: that of all its rows, of which these are the last; -1 for row 0, which stands behind `start` + `rows` - \
len(parent) rows. None for a chain, where each row sees all before it |
    """

    start: int
    rows: int
    parent: tuple[int, ...] | None = None

    @classmethod
    def tree(cls, base: int, parent: Sequence[int], rows: int | None = None) -> "Span":
        """The last `rows` rows (all, if None) of a tree whose row 0 stands behind `base` rows; a tree that is a chain becomes one."""
        rows = len(parent) if rows is None else rows
        start = base + len(parent) - rows
        return cls(start, rows, None if list(parent) == chain(len(parent)) else tuple(parent))

    @property
    def base(self) -> int:
        """Rows in front of the chain, or of the tree's row 0."""
        return self.start + self.rows - len(self.parent or [0] * self.rows)

    def places(self, device) -> tuple[Tensor, Tensor | None]:
        """Positions `[rows]`, and the mask bool `[rows, start + rows]` of whom each sees, None where that is everybody."""
        if self.parent is not None:
            return branches(self.base, list(self.parent), self.rows, device)
        position = torch.arange(self.start, self.start + self.rows, device=device)
        return position, ancestor_mask(self.start, chain(self.rows), device)


@dataclass(frozen=True)
class At:
    """What a body is given of where its rows stand; `last` is the number of the last row that counts."""

    rotation: tuple[Tensor, Tensor]
    mask: Tensor | None
    cache: KVCache | StaticKVCache
    start: int
    last: int | Tensor

    def through(
        self, decoder: Decoder, x: Tensor, layers: range, taps: dict[int, Tensor] | None = None
    ) -> Tensor:
        """Rows `[n, width]` through some of a decoder's layers."""
        return decoder.run(x[None], layers, self.rotation, self.mask, self.cache, self.start, taps)[
            0
        ]

    def end(self, x: Tensor) -> Tensor:
        """The last row that counts, `[1, ...]`."""
        return (
            x.index_select(0, self.last)
            if isinstance(self.last, Tensor)
            else x[self.last : self.last + 1]
        )


Body = Callable[..., tuple[Tensor, ...]]
"""(*inputs `[n, ...]`, At) -> tensors whose first dimension is the rows', or 1."""


class EagerPasses:
    """Passes as they come: every kernel issued from Python."""

    name = "eager"
    widths: tuple[int, ...] = ()
    smallest = 0

    def cache(self, name: str, decoder: Decoder, layers: int, rows: int) -> KVCache:
        """A cache for the owner `name`, with room for `rows` rows at first."""
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
        """Runs `body` on the rows; its results."""
        position, mask = span.places(decoder.device)
        cache.reserve(span.start + span.rows)
        at = At(decoder.rotation(position), mask, cache, span.start, span.rows - 1)
        return body(*(_tensor(x, decoder.device) for x in inputs), at)

    def call(
        self, name: str, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """Runs a function of tensors that has no rows in a cache."""
        return function(*inputs)

    def warm(self) -> None:
        """Makes ready whatever is made on first use, between two texts."""


EAGER = EagerPasses()


def _tensor(x: Input, device) -> Tensor:
    return x if isinstance(x, Tensor) else torch.tensor(x, device=device)


class CapturedPasses(EagerPasses):
    """Passes padded to the next of `widths` rows, over caches of `capacity` rows that stay where they are, each captured once.

    The rows seen are those of the smallest power of two, from `smallest` on, that holds the pass. What is added behind the rows that count
    changes nothing of them: it is masked, and written where nothing valid is. Passes of more rows (prefills) run eagerly. Results are
    copied out of the captured pass's own memory. With `compiled` the layers are fused by torch.compile first, by default on a card alone;
    a dict is given to it.
    A drafter and its target share one such object, with a `name` of its own for each body. ValueError for a text beyond `capacity`.
    """

    def __init__(
        self,
        widths: Sequence[int],
        capacity: int,
        compiled: dict | bool | None = None,
        smallest: int = 256,
    ):
        if not widths or min(widths) < 1 or capacity < max(widths):
            raise ValueError(
                f"widths {list(widths)} and capacity {capacity}; expected rows of at least 1, and room for the widest pass"
            )
        self.widths, self.capacity, self.compiled, self.smallest = (
            tuple(sorted(set(widths))),
            capacity,
            compiled,
            smallest,
        )
        self.caches: dict[str, KVCache] = {}
        self.made: dict[tuple, _Pass] = {}
        self.pool = None

    @property
    def name(self) -> str:
        """The engine: strict where all passes have one width and one KV window, else fast."""
        return "strict" if len(self.widths) == 1 and self.smallest >= self.capacity else "fast"

    def cache(self, name: str, decoder: Decoder, layers: int, rows: int) -> KVCache:
        """The cache of that owner, one for all texts."""
        if name not in self.caches:
            try:
                self.caches[name] = decoder.cache(layers, capacity=self.capacity)
            except (MemoryError, RuntimeError) as error:  # torch says both, by device
                what = f"caches of {self.capacity} rows do not fit {decoder.device}"
                raise ValueError(f"{what}; take shorter texts, or the eager engine") from error
        return self.caches[name]

    @torch.inference_mode()
    def run(
        self,
        name: str,
        decoder: Decoder,
        body: Body,
        inputs: Sequence[Input],
        span: Span,
        cache: KVCache,
    ) -> tuple[Tensor, ...]:
        """As `EagerPasses.run`, by a captured pass where the rows fit one."""
        width = self._width(span)
        if width is None or span.start + width > self.capacity:
            self._check(span.start + span.rows)
            return super().run(name, decoder, body, inputs, span, cache)
        seen = next(seen for seen in self._sizes() if seen >= span.start + width)
        key = name, width, seen, span.parent is None
        made = self.made.get(key)
        if (
            made is None or made.keys is not cache.key
        ):  # drafters that write to the target's cache may have made it grow
            most = 0 if span.parent is None else self.widths[-1]
            shapes = [
                (tuple(x.shape[1:]), x.dtype) if isinstance(x, Tensor) else None for x in inputs
            ]
            made = self.made[key] = _Pass(decoder, body, shapes, width, seen, most, cache)
        made.set(inputs, span)
        return tuple(out[: span.rows].clone() for out in self._replayed(made))

    @torch.inference_mode()
    def call(
        self, name: str, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """As `EagerPasses.call`, captured once for inputs of these shapes."""
        key = name, *(tuple(x.shape) for x in inputs)
        if key not in self.made:
            self.made[key] = _Call(function, inputs)
        self.made[key].set(inputs)
        return tuple(out.clone() for out in self._replayed(self.made[key]))

    @torch.inference_mode()
    def warm(self) -> None:
        """Captures what has been run so far at every width, and for every number of rows seen, that have not come yet.

        Between two texts: rows of the caches are written over.
        """
        for (name, *_, chained), made in [
            each for each in self.made.items() if isinstance(each[1], _Pass)
        ]:
            for width in self.widths:
                for seen in self._sizes():
                    key = name, width, seen, chained
                    if seen >= width and key not in self.made:
                        self.made[key] = _Pass(
                            made.decoder, made.body, made.shapes, width, seen, made.most, made.cache
                        )
                        self._replayed(self.made[key])

    def _sizes(self) -> list[int]:
        sizes = [min(self.smallest, self.capacity)]
        while sizes[-1] < self.capacity:
            sizes.append(min(2 * sizes[-1], self.capacity))
        return sizes

    def _replayed(self, made: "_Call") -> tuple[Tensor, ...]:
        if made.replay is None:
            card = made.device.type == "cuda"
            if card and self.pool is None:
                self.pool = torch.cuda.graph_pool_handle()
            compiled = card if self.compiled is None else self.compiled
            options = compiled if isinstance(compiled, dict) else {}
            with compiled_layers(**options) if compiled else nullcontext() as layer_forward:
                made.replay = capture(lambda: made.function(layer_forward), made.device, self.pool)
        return made.replay()

    def _width(self, span: Span) -> int | None:
        tall = span.rows if span.parent is None else max(span.rows, len(span.parent))
        if tall > self.widths[-1]:
            return None
        return next(width for width in self.widths if width >= span.rows)

    def _check(self, rows: int) -> None:
        if rows > self.capacity:
            raise ValueError(
                f"a text of {rows} rows is too long for caches of {self.capacity}; give the fast engine a larger capacity"
            )


class _Call:
    """A function of tensors, and the tensors that it is captured on."""

    replay: Replay | None = None

    def __init__(self, function, inputs: Sequence[Tensor]):
        self.body, self.held = function, [torch.zeros_like(x) for x in inputs]
        self.device = inputs[0].device

    def set(self, inputs: Sequence[Tensor]) -> None:
        for held, x in zip(self.held, inputs):
            held.copy_(x)

    def function(self, layer_forward: Callable | None = None) -> tuple[Tensor, ...]:
        return self.body(*self.held)


class _Pass(_Call):
    """A body at one width: all that depends on where its rows stand and on their tokens lies in one tensor of numbers.

    In their order: start, base, the last row that counts; `width` tokens of each input that is tokens; of a tree the depth of each row,
    and for each row whether it sees each of the tree's first `most` rows.
    """

    def __init__(
        self,
        decoder: Decoder,
        body: Body,
        shapes: Sequence,
        width: int,
        seen: int,
        most: int,
        cache: KVCache,
    ):
        self.decoder, self.body, self.shapes, self.width, self.seen = (
            decoder,
            body,
            shapes,
            width,
            seen,
        )
        self.most, self.cache, self.keys = most, cache, cache.key
        self.device = device = decoder.device
        self.held = [
            None if shape is None else torch.zeros(width, *shape[0], dtype=shape[1], device=device)
            for shape in shapes
        ]
        size = 3 + width * (self.held.count(None) + bool(most) + most)
        self.numbers = torch.zeros(size, dtype=torch.int64, device=device)
        if most:  # whatever a row is, it sees something: a softmax over nothing is not a number, and would stay in the cache
            self.numbers[size - width * most :: most] = 1
        self.slot, self.column = (
            torch.arange(width, device=device),
            torch.arange(seen, device=device),
        )

    def set(self, inputs: Sequence[Input], span: Span) -> None:
        numbers, empty = [span.start, span.base, span.rows - 1], [0] * (self.width - span.rows)
        for held, x in zip(self.held, inputs):
            if held is None:
                numbers += [*x, *empty]
            else:
                held[: span.rows].copy_(x)
        if span.parent is not None:
            numbers += [*depths(list(span.parent))[-span.rows :], *empty]
            above: list[set[int]] = []
            for row, parent in enumerate(span.parent):
                above.append({row} | (above[parent] if parent >= 0 else set()))
            shown = above[-span.rows :] + [{0}] * len(empty)
            numbers += [int(row in sees) for sees in shown for row in range(self.most)]
        card = self.device.type == "cuda"
        self.numbers.copy_(torch.tensor(numbers, pin_memory=card), non_blocking=card)

    def function(self, layer_forward: Callable | None = None) -> tuple[Tensor, ...]:
        numbers, width, most = self.numbers, self.width, self.most
        start, base, last = numbers[0], numbers[1], numbers[2:3]
        inputs, at = [], 3
        for held in self.held:
            inputs.append(numbers[at : at + width] if held is None else held)
            at += width * (held is None)
        row = start + self.slot
        if most:
            position = base + numbers[at : at + width]
            own = self.column - base
            shown = (
                numbers[at + width :].view(width, most).index_select(1, own.clamp(0, most - 1)) > 0
            )
            sees = (own < 0) | (shown & (own < most))
        else:
            position, sees = row, self.column <= row[:, None]
        decoder = self.decoder
        mask = torch.zeros_like(sees, dtype=decoder.dtype).masked_fill(~sees, -torch.inf)
        window = StaticKVCache(
            self.cache.key[:, :, :, : self.seen],
            self.cache.value[:, :, :, : self.seen],
            row,
            layer_forward,
        )
        return self.body(*inputs, At(decoder.rotation(position), mask, window, 0, last))

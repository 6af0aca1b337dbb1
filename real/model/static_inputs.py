"""Functions with the fixed input tensors that they are captured on."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from real.model.cuda_graphs import Replay
from real.model.decoder import Decoder
from real.model.kv_cache import KVCache, StaticKVCache
from real.model.runner import Body, Input
from real.model.span import ForwardContext, Span
from real.model.tree_mask import depths


class StaticFunction(ABC):
    """A function of fixed tensors; `replay` is set when it has been captured."""

    device: torch.device
    replay: Replay | None = None

    @abstractmethod
    def function(self, layer_forward: Callable | None = None) -> tuple[Tensor, ...]:
        """The call on the fixed inputs, its layers run by `layer_forward` where given."""


class StaticCall(StaticFunction):
    """A function of tensors with its fixed inputs; it runs no decoder layer over a cache."""

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor]):
        self.body = function
        self.inputs = [torch.zeros_like(x) for x in inputs]
        self.device = inputs[0].device

    def set(self, inputs: Sequence[Tensor]) -> None:
        """Copies the next call's inputs into the fixed ones."""
        for static, x in zip(self.inputs, inputs):
            static.copy_(x)

    def function(self, layer_forward: Callable | None = None) -> tuple[Tensor, ...]:
        """The call on the fixed inputs; `layer_forward` has nothing to run."""
        return self.body(*self.inputs)


class StaticPass(StaticFunction):
    """A body at one width and one KV window; a single int64 tensor holds all that differs between
    its calls.

    | part of `numbers` | length | meaning |
    | --- | --- | --- |
    | start, base, last | 3 | as in `Span`, and the last row that is not padding |
    | tokens | width each | of each input that is tokens |
    | depth | width | of each row of a tree |
    | sees | width x tree_rows | whether a row attends to each of the tree's first `tree_rows` \
rows |
    """

    def __init__(
        self,
        decoder: Decoder,
        body: Body,
        shapes: Sequence[tuple | None],
        width: int,
        window: int,
        tree_rows: int,
        cache: KVCache,
    ):
        self.decoder, self.body, self.shapes = decoder, body, shapes
        self.width, self.window, self.tree_rows = width, window, tree_rows
        self.cache, self.keys = cache, cache.key
        self.device = device = decoder.device
        self.inputs = [
            None if shape is None else torch.zeros(width, *shape[0], dtype=shape[1], device=device)
            for shape in shapes
        ]
        size = 3 + width * (self.inputs.count(None) + bool(tree_rows) + tree_rows)
        self.numbers = torch.zeros(size, dtype=torch.int64, device=device)
        if tree_rows:  # each row must see something: a softmax over nothing is NaN
            self.numbers[size - width * tree_rows :: tree_rows] = 1
        self.slot = torch.arange(width, device=device)
        self.column = torch.arange(window, device=device)

    def set(self, inputs: Sequence[Input], span: Span) -> None:
        """Copies the inputs of the next pass, and the places of its rows, into the fixed
        tensors."""
        numbers = [span.start, span.base, span.rows - 1]
        padding = [0] * (self.width - span.rows)
        for static, x in zip(self.inputs, inputs):
            if static is None:
                numbers += [*x, *padding]
            else:
                assert isinstance(x, Tensor)  # an input is always of one kind
                static[: span.rows].copy_(x)
        if span.parent is not None:
            numbers += [*depths(list(span.parent))[-span.rows :], *padding]
            ancestors: list[set[int]] = []
            for row, parent in enumerate(span.parent):
                ancestors.append({row} | (ancestors[parent] if parent >= 0 else set()))
            visible = ancestors[-span.rows :] + [{0}] * len(padding)
            numbers += [int(row in sees) for sees in visible for row in range(self.tree_rows)]
        cuda = self.device.type == "cuda"
        self.numbers.copy_(torch.tensor(numbers, pin_memory=cuda), non_blocking=cuda)

    def function(self, layer_forward: Callable | None = None) -> tuple[Tensor, ...]:
        """The pass on the fixed inputs, its layers run by `layer_forward` where given."""
        numbers, width, tree_rows = self.numbers, self.width, self.tree_rows
        start, base, last = numbers[0], numbers[1], numbers[2:3]
        inputs, offset = [], 3
        for static in self.inputs:
            inputs.append(numbers[offset : offset + width] if static is None else static)
            offset += width * (static is None)
        row = start + self.slot
        if tree_rows:
            position = base + numbers[offset : offset + width]
            tree_row = self.column - base
            table = numbers[offset + width :].view(width, tree_rows)
            visible = table.index_select(1, tree_row.clamp(0, tree_rows - 1)) > 0
            sees = (tree_row < 0) | (visible & (tree_row < tree_rows))
        else:
            position, sees = row, self.column <= row[:, None]
        decoder = self.decoder
        mask = torch.zeros_like(sees, dtype=decoder.dtype).masked_fill(~sees, -torch.inf)
        window = StaticKVCache(
            self.cache.key[:, :, :, : self.window],
            self.cache.value[:, :, :, : self.window],
            row,
            layer_forward,
        )
        context = ForwardContext(decoder.rotation(position), mask, window, 0, last)
        return self.body(*inputs, context)

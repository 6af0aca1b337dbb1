"""Linear layers that multiply each number of rows in the fastest way that this machine has.

A CPU's library is not monotone: a product of one row may take longer than one of four, in one
layout of the weights and not in the other. Processor, threads and shape decide.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.model.draft_vocabulary import DraftVocabularyHead
from real.model.runner import EagerPasses


def multiplies_bfloat16(device: str | torch.device) -> bool:
    """False where bfloat16 is emulated: a CPU without AVX-512 takes some 30 times as long."""
    on_cpu = torch.device(device).type == "cpu"
    return not on_cpu or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


PLAIN, PACKED = "plain", "packed"
"""Layouts of a weight: torch's own, and oneDNN's for products of a few rows."""
DTYPES = (torch.float32, torch.bfloat16)
TIMED_ROWS = 1, 2, 3, 4, 5, 6, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48
"""Rows whose products are timed: few, and around the blocks of 16 rows of a CPU's kernels. More
rows are multiplied in the layout of the last of them."""
REPEATS = 5
"""Repeats of every trial; the fastest counts, since other load only slows a product."""
GAIN = 0.05
"""Another way than a shape's own layout, unpadded, must be faster by this share: two processes of
one machine shall choose alike."""


@dataclass(frozen=True)
class Way:
    """How n rows are multiplied: in a layout, padded with zeros to `rows` rows."""

    layout: str
    rows: int


class Ways:
    """A `Way` for each number of rows, for one shape of weight; all its layers share it."""

    def __init__(self, layouts: Sequence[str]):
        self.layouts = tuple(layouts)
        self.last = self.layouts[-1]
        self.table: dict[int, Way] = {}

    def of(self, rows: int) -> Way:
        """The `Way` for `rows` rows; those that were not timed go unpadded in the last layout."""
        return self.table.get(rows) or Way(self.last, rows)

    def describe(self) -> str:
        """Such as '1: packed as 4, 2-17: packed'."""
        parts: list[tuple[int, int, str]] = []
        for rows, way in sorted(self.table.items()):
            text = way.layout if way.rows == rows else f"{way.layout} as {way.rows}"
            if parts and parts[-1][2] == text:
                parts[-1] = parts[-1][0], rows, text
            else:
                parts.append((rows, rows, text))
        return ", ".join(f"{a}: {t}" if a == b else f"{a}-{b}: {t}" for a, b, t in parts)


CHOSEN: dict[tuple, Ways] = {}
"""Ways by shape and dtype of a weight, layouts and threads."""


class PrepackedPasses(EagerPasses):
    """Eager passes of models with `TunedLinear` layers in both layouts."""

    @property
    def name(self) -> str:
        return "prepacked"


class TunedLinear(nn.Linear):
    """The linear layer it is made from, whose products go the way that `ways` names.

    With `PACKED` among the layouts it holds a second copy of its weight. Results differ by rounding
    alone.
    """

    packed: Tensor

    def __init__(self, linear: nn.Linear, ways: Ways):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias, self.ways = linear.weight, linear.bias, ways
        if PACKED in ways.layouts:
            packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), 1)
            self.register_buffer("packed", packed, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = x[..., 0].numel()
        return self.multiply(x, rows, self.ways.of(rows))

    def multiply(self, x: Tensor, rows: int, way: Way) -> Tensor:
        """The product of `rows` rows `x [..., in]`, multiplied in that way."""
        if way.rows == rows:
            return self._product(x, way.layout)
        wide = x.new_zeros(way.rows, self.in_features)
        wide[:rows] = x.reshape(rows, self.in_features)
        product = self._product(wide, way.layout)[:rows]
        return product.reshape(*x.shape[:-1], self.out_features)

    def _product(self, x: Tensor, layout: str) -> Tensor:
        if layout == PLAIN:
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def check_prepackable(model: nn.Module) -> None:
    """ValueError for a device or dtype without packed weights, and bfloat16 that is emulated."""
    weight = next(model.parameters())
    if weight.device.type != "cpu" or weight.dtype not in DTYPES:
        raise ValueError(
            f"engine prepacked: the target is {str(weight.dtype)[6:]} on {weight.device}; expected "
            "float32 or bfloat16 on a CPU; use engine eager, or fast on a GPU"
        )
    if weight.dtype == torch.bfloat16 and not multiplies_bfloat16(weight.device):
        raise ValueError(
            "engine prepacked: this processor only emulates bfloat16; use float32, or engine eager"
        )


@torch.no_grad()
def tune(
    model: nn.Module,
    layouts: Sequence[str] = (PLAIN, PACKED),
    timer: Callable[[], float] = perf_counter,
) -> None:
    """Replaces a model's linear layers for inference, and times which way is fastest for each row.

    Layers of one shape share their ways in all models of this process, so that contestants of a
    race multiply alike. A model that is tuned already stays as it is.
    """
    new: list[TunedLinear] = []

    def tuned(linear: nn.Linear) -> TunedLinear:
        key = (*linear.weight.shape, linear.weight.dtype, tuple(layouts), torch.get_num_threads())
        new.append(TunedLinear(linear, CHOSEN.setdefault(key, Ways(layouts))))
        return new[-1]

    for module in list(model.modules()):
        if isinstance(module, DraftVocabularyHead) and module.product is None:
            linear = module.linear()
            if _tunable(linear.weight):
                module.product = tuned(linear)
        for name, child in list(module.named_children()):
            if isinstance(child, TunedLinear) or not isinstance(child, nn.Linear):
                continue
            if _tunable(child.weight):
                setattr(module, name, tuned(child))
    if unknown := [layer for layer in new if not layer.ways.table]:
        choose_ways(unknown, timer)


def _tunable(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype in DTYPES


Trial = tuple[int, Way]
"""Number of rows, and the way in which they are multiplied."""


@torch.inference_mode()
def choose_ways(
    layers: Sequence[TunedLinear], timer: Callable[[], float] = perf_counter, repeats: int = REPEATS
) -> None:
    """Times products of all layers in the order of a pass, and keeps the fastest of each shape.

    First n rows as they are, in every layout; then, where a wider product was faster, n rows padded
    to it against n rows as they are. Between timed numbers of rows seconds are linear. The order is
    random, the fastest repeat counts. A shape has the layout of least time over all timed rows;
    other ways replace it only where they are faster by GAIN.
    """
    shapes = list({id(layer.ways): layer.ways for layer in layers}.values())
    direct = [(n, Way(layout, n)) for layout in layers[0].ways.layouts for n in TIMED_ROWS]
    seconds = _times(layers, direct, timer, repeats)
    padded: dict[Trial, None] = {}
    for ways in shapes:
        of = seconds[id(ways)]
        lines = {layout: [of[n, Way(layout, n)] for n in TIMED_ROWS] for layout in ways.layouts}
        own = min(lines, key=lambda layout: sum(lines[layout]))
        for n in range(1, TIMED_ROWS[-1] + 1):
            as_it_is = {
                Way(layout, n): float(np.interp(n, TIMED_ROWS, line))
                for layout, line in lines.items()
            }
            narrow, other = Way(own, n), min(as_it_is, key=lambda way: as_it_is[way])
            if as_it_is[other] < (1 - GAIN) * as_it_is[narrow]:
                narrow = other
            wide = min(
                (way for rows, way in direct if rows >= n), key=lambda way: of[way.rows, way]
            )
            gains = of[wide.rows, wide] < (1 - GAIN) * as_it_is[narrow]
            ways.table[n] = wide if gains and n not in TIMED_ROWS else narrow
            if gains and n in TIMED_ROWS:
                padded |= {(n, wide): None, (n, narrow): None}
    if padded:
        seconds = _times(layers, list(padded), timer, repeats)
        for ways in shapes:
            of = seconds[id(ways)]
            for n in {rows for rows, _ in padded}:
                narrow = ways.table[n]
                tried = [way for rows, way in padded if rows == n]
                wide = min(tried, key=lambda way: of[n, way])
                if narrow in tried and of[n, wide] < (1 - GAIN) * of[n, narrow]:
                    ways.table[n] = wide
    for ways in shapes:
        ways.last = ways.table[TIMED_ROWS[-1]].layout


def _times(
    layers: Sequence[TunedLinear], trials: Sequence[Trial], timer: Callable[[], float], repeats: int
) -> dict[int, dict[Trial, float]]:
    """Fastest seconds of each trial, summed over the layers of each shape (by id of its ways)."""
    rng = np.random.default_rng(0)
    taken: dict[int, dict[Trial, list[float]]] = {
        id(layer.ways): {trial: [] for trial in trials} for layer in layers
    }
    weight = layers[0].weight
    inputs = {layer.in_features for layer in layers}
    rows = {n for n, _ in trials}
    x = {
        (n, size): torch.randn(1, n, size, dtype=torch.float32).to(weight.dtype)
        for n in rows
        for size in inputs
    }
    for repeat in range(repeats + 1):  # the first warms up
        for i in rng.permutation(len(trials)):
            n, way = trials[i]
            total = dict.fromkeys(taken, 0.0)
            for layer in layers:
                begin = timer()
                layer.multiply(x[n, layer.in_features], n, way)
                total[id(layer.ways)] += timer() - begin
            if repeat:
                for shape, seconds in total.items():
                    taken[shape][trials[i]].append(seconds)
    return {
        shape: {trial: min(values) for trial, values in of.items()} for shape, of in taken.items()
    }


def ways_of(models: Iterable[nn.Module]) -> Mapping[str, str]:
    """{'OUTxIN': how each number of rows is multiplied} of tuned models; {} for others."""
    layers = [m for model in models for m in model.modules() if isinstance(m, TunedLinear)]
    return {f"{m.out_features}x{m.in_features}": m.ways.describe() for m in layers}

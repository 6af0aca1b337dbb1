"""Measured times of a GPU's kernels, and the times between them."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, log
from typing import NamedTuple

import numpy as np

STATUS = "measured", "interpolated", "extrapolated"
"""What a time rests on; a sum is as good as its worst part."""


class Time(NamedTuple):
    """Seconds, and the STATUS that they have."""

    seconds: float
    status: str

    def scaled(self, factor: float) -> "Time":
        """`factor` times as long, of the same status; an extrapolation unless it is 1."""
        return self if factor == 1 else Time(self.seconds * factor, "extrapolated")


def worst(statuses: Iterable[str]) -> str:
    """The last of STATUS among these."""
    return max(statuses, key=STATUS.index, default=STATUS[0])


@dataclass(frozen=True)
class Line:
    """Seconds by one size: exact where measured, linear between, proportional beyond the last.

    | field | dtype [P] | meaning |
    | --- | --- | --- |
    | size | float64, growing, > 0 | rows, tokens or bytes |
    | seconds | float64 > 0 | of one call |

    Below the first size the first time holds.
    """

    size: np.ndarray
    seconds: np.ndarray

    def at(self, size: float) -> Time:
        """The time at this size."""
        i = int(np.searchsorted(self.size, size))
        if i < len(self.size) and self.size[i] == size:
            return Time(float(self.seconds[i]), "measured")
        if i == len(self.size):
            return Time(float(self.seconds[-1]), "measured").scaled(size / self.size[-1])
        if i == 0:
            return Time(float(self.seconds[0]), "extrapolated")
        between = np.interp(size, self.size[i - 1 : i + 1], self.seconds[i - 1 : i + 1])
        return Time(float(between), "interpolated")


@dataclass(frozen=True)
class Products:
    """Matrix products: a Line by rows m for each measured weight, n outputs x k inputs.

    Between weights the time's logarithm is bilinear in log n and log k, at each m. Beyond the
    largest n or k it is proportional; below the smallest the smallest holds. Where one of the four
    neighbours is missing, the nearest weight's time holds for each of its numbers (n k).
    """

    lines: Mapping[tuple[int, int], Line]
    n: list[int] = field(init=False)
    k: list[int] = field(init=False)

    def __post_init__(self) -> None:
        for axis, values in (("n", {n for n, _ in self.lines}), ("k", {k for _, k in self.lines})):
            object.__setattr__(self, axis, sorted(values))

    def at(self, m: float, n: int, k: int) -> Time:
        """The time of m rows times an n x k weight."""
        (n0, n1, over_n), (k0, k1, over_k) = _around(self.n, n), _around(self.k, k)
        corners = [(a, b) for a in (n0, n1) for b in (k0, k1)]
        if any(corner not in self.lines for corner in corners):
            near = min(self.lines, key=lambda s: abs(log(s[0] / n)) + abs(log(s[1] / k)))
            time = self.lines[near].at(m)
            return Time(time.seconds * n * k / (near[0] * near[1]), "extrapolated")
        times = [self.lines[corner].at(m) for corner in corners]
        logs = [log(time.seconds) for time in times]
        share = _share(k, k0, k1)
        low, high = (logs[i] + (logs[i + 1] - logs[i]) * share for i in (0, 2))
        status = worst([*(t.status for t in times), *_between((n, n0, n1), (k, k0, k1))])
        inside = n0 == n1 == n and k0 == k1 == k
        seconds = times[0].seconds if inside else exp(low + (high - low) * _share(n, n0, n1))
        return Time(seconds, status).scaled(over_n * over_k)


def _around(axis: list[int], value: int) -> tuple[int, int, float]:
    """(the measured sizes on both sides, how many times the largest this is, at least 1)."""
    i = bisect_left(axis, value)
    if i == len(axis):
        return axis[-1], axis[-1], value / axis[-1]
    if axis[i] == value or i == 0:
        return axis[i], axis[i], 1.0
    return axis[i - 1], axis[i], 1.0


def _share(value: int, low: int, high: int) -> float:
    return 0.0 if low == high else log(value / low) / log(high / low)


def _between(*axes: tuple[int, int, int]) -> list[str]:
    """The status of each axis, by (value, low, high); above the largest `Time.scaled` says it."""
    return [
        "interpolated" if low < high else "extrapolated" if value < low else "measured"
        for value, low, high in axes
    ]


@dataclass(frozen=True)
class AttentionGrid:
    """Decode attention of one shape of heads, by sequences and cached tokens.

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | batch, context | float64 [B], [C], growing | sequences; cached tokens of each |
    | seconds | float64 [B, C] | of one layer |
    | measured | bool [B, C] | False: filled in proportion to the tokens, from the cell before it |

    Bilinear in both sizes between cells, so exact for a launch and a rate of reading. Proportional
    beyond the last batch or context.
    """

    batch: np.ndarray
    context: np.ndarray
    seconds: np.ndarray
    measured: np.ndarray

    @classmethod
    def of(cls, cells: Mapping[tuple[int, int], float]) -> "AttentionGrid":
        """The grid of {(batch, context): seconds}."""
        batch, context = (np.array(sorted({key[i] for key in cells}), float) for i in (0, 1))
        known = {(float(b), float(c)): seconds for (b, c), seconds in cells.items()}
        grid = np.array([[known.get((b, c), np.nan) for c in context] for b in batch])
        measured = np.isfinite(grid)
        for (i, j), held in np.ndenumerate(measured):
            if held:
                continue
            before = [(i, j - 1, context[j] / context[j - 1])] if j else []
            before += [(i - 1, j, batch[i] / batch[i - 1])] if i else []
            if before:
                filled = [grid[a, b] * ratio for a, b, ratio in before]
                grid[i, j] = np.nanmax(filled) if np.isfinite(filled).any() else np.nan
            if not np.isfinite(grid[i, j]):
                later = grid[i, j:][np.isfinite(grid[i, j:])]
                grid[i, j] = later[0] if len(later) else np.nanmin(grid)
        return cls(batch, context, grid, measured)

    def at(self, batch: float, context: float) -> Time:
        """The time of one layer."""
        (i, a, over_batch), (j, b, over_context) = (
            _cell(axis, value) for axis, value in ((self.batch, batch), (self.context, context))
        )
        rows, columns = slice(i, i + 1 + (a > 0)), slice(j, j + 1 + (b > 0))
        weights = np.outer([1 - a, a] if a else [1.0], [1 - b, b] if b else [1.0])
        seconds = float((weights * self.seconds[rows, columns]).sum())
        status = "extrapolated" if not self.measured[rows, columns].all() else "measured"
        between = "interpolated" if a or b else "measured"
        below = batch < self.batch[0] or context < self.context[0] > 1
        statuses = (status, between, "extrapolated" if below else "measured")
        return Time(seconds, worst(statuses)).scaled(over_batch * over_context)


def _cell(axis: np.ndarray, value: float) -> tuple[int, float, float]:
    """(cell, share of the next one, how many times the largest this is, at least 1)."""
    if value >= axis[-1]:
        return len(axis) - 1, 0.0, value / axis[-1]
    i = int(np.searchsorted(axis, value, "right")) - 1
    return (0, 0.0, 1.0) if i < 0 else (i, float((value - axis[i]) / (axis[i + 1] - axis[i])), 1.0)


@dataclass(frozen=True, eq=False)
class KernelTimes:
    """Measured times of one device and engine.

    | field | meaning |
    | --- | --- |
    | device, engine, version | as the tables name them |
    | products | {number type: Products} of linear layers |
    | attention | {(head_dim, query heads, key heads): AttentionGrid}, 16-bit caches |
    | experts | {(number type, width, hidden, topk, experts, tp): Line by tokens}, one GPU's part |
    | all_reduce | {GPUs: Line by bytes} |
    | source | where the times are from |
    """

    device: str
    engine: str
    version: str
    products: Mapping[str, Products]
    attention: Mapping[tuple[int, int, int], AttentionGrid]
    experts: Mapping[tuple[str, int, int, int, int, int], Line] = field(default_factory=dict)
    all_reduce: Mapping[int, Line] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        # a table of prices asks for the same products at every context
        object.__setattr__(self, "product", lru_cache(1 << 16)(self.product))
        object.__setattr__(self, "_measured_ratios", lru_cache(1 << 12)(self._measured_ratios))

    def product(self, m: int, n: int, k: int, dtype: str) -> Time:
        """m rows times an n x k weight; ValueError for a number type without times."""
        if dtype not in self.products:
            raise ValueError(
                f"{self.label} has no times of products in {dtype}, expected "
                f"{' or '.join(self.products)}"
            )
        return self.products[dtype].at(m, n, k)

    def attend(
        self, heads: tuple[int, int, int], batch: int, context: float, rows: float = 1.0
    ) -> Time:
        """One layer's attention; heads: (head_dim, query heads, key heads), `rows` a sequence.

        Rows count as further query heads of their key heads, as FlashAttention packs them: both
        read the keys once. A ratio of query to key heads that is not measured at this many key
        heads is taken at a divisor of them, with as many more sequences. ValueError for an
        unmeasured head_dim.
        """
        head_dim, _, keys = heads
        group, ratio, ratios, around = self._measured_ratios(heads, rows)
        times = [
            self.attention[head_dim, round(r * group), group].at(batch * keys / group, context)
            for r in around
        ]
        share = (ratio - around[0]) / (around[1] - around[0]) if len(around) > 1 else 0.0
        seconds = times[0].seconds + (times[-1].seconds - times[0].seconds) * share
        same = rows == 1 and group == keys and len(around) == 1 and ratio >= ratios[0]
        status = worst([*(t.status for t in times), "measured" if same else "interpolated"])
        return Time(seconds, status).scaled(max(ratio / ratios[-1], 1.0))

    def _measured_ratios(
        self, heads: tuple[int, int, int], rows: float
    ) -> tuple[int, float, list[float], list[float]]:
        """Key heads that are measured, the ratio of query to key heads, the ratios measured at
        these key heads, and those around it."""
        head_dim, queries, keys = heads
        held = [(q, g) for d, q, g in self.attention if d == head_dim and keys % g == 0]
        if not held:
            known = sorted({d for d, _, _ in self.attention})
            raise ValueError(
                f"{self.label} has no attention of heads of {head_dim} with {keys} key heads, "
                f"expected heads of one of {known}"
            )
        ratio = rows * queries / keys
        most = {group: max(q / g for q, g in held if g == group) for _, group in held}
        enough = [g for g in most if most[g] >= ratio]
        group = max(enough) if enough else max(most, key=lambda g: (most[g], g))
        ratios = sorted(q / group for q, g in held if g == group)
        i = min(bisect_left(ratios, ratio), len(ratios) - 1)
        around = ratios[i : i + 1] if ratio >= ratios[i] or i == 0 else ratios[i - 1 : i + 1]
        return group, ratio, ratios, around

    def route(self, shape: tuple[int, int, int, int], tokens: int, dtype: str, tp: int) -> Time:
        """One layer's experts; shape: (width, hidden, topk, experts). ValueError lists what is
        measured.
        """
        line = self.experts.get((dtype, *shape, tp))
        if line is None:
            known = sorted({key[1:5] for key in self.experts if key[0] == dtype and key[5] == tp})
            raise ValueError(
                f"{self.label} has no experts of (width, hidden, topk, experts) {shape} in {dtype} "
                f"on {tp} GPUs, expected one of {known}"
            )
        return line.at(tokens)

    def reduce(self, gpus: int, size: float) -> Time:
        """An all-reduce of `size` bytes; none for one GPU. ValueError for unmeasured GPUs."""
        if gpus == 1:
            return Time(0.0, "measured")
        if gpus not in self.all_reduce:
            raise ValueError(
                f"{self.label} has no all-reduce of {gpus} GPUs, expected one of "
                f"{[1, *sorted(self.all_reduce)]}"
            )
        return self.all_reduce[gpus].at(size)

    @property
    def label(self) -> str:
        """The device and the engine with its version."""
        return f"{self.device} with {self.engine} {self.version}"

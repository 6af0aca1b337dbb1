"""Estimates of costs: trimmed means of timing blocks, with the half-widths of their intervals."""

from collections.abc import Iterable, Mapping, Sequence
from math import hypot, inf, isfinite, nan, sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95
TRIM = 0.2
"""Share of the weight that is left out at each end: bursts of a shared machine are one-sided."""
FEWEST_BLOCKS = 4
"""An interval needs so many blocks."""


class Timed(NamedTuple):
    """Seconds of rounds at the machine's typical pace, with the block and weight of each."""

    seconds: np.ndarray
    block: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Timed":
        """Seconds of equal weight, each in a block of its own."""
        values = np.asarray(seconds, np.float64)
        return cls(values, np.arange(len(values)), np.ones(len(values)))

    def __add__(self, other: "Timed") -> "Timed":  # type: ignore[override]
        return Timed(*(np.concatenate(pair) for pair in zip(self, other)))

    def map(self, seconds: np.ndarray) -> "Timed":
        """Other seconds of the same rounds."""
        return self._replace(seconds=seconds)


class Estimate(NamedTuple):
    """Seconds, the half-width of their interval (nan: unknown), and how many blocks were timed."""

    seconds: float
    half_width: float
    samples: int


ZERO = Estimate(0.0, 0.0, 0)


def estimate(timed: Timed) -> Estimate:
    """Trimmed mean over blocks of their rounds' means, each block by its weight.

    The half-width is Student's with the error of a trimmed mean (Tukey and McLaughlin 1963),
    infinite below FEWEST_BLOCKS. ValueError for no round.
    """
    if not len(timed.seconds):
        raise ValueError("no round to take a mean of; expected at least one")
    rounds: np.ndarray = np.bincount(timed.block)
    weight: np.ndarray = np.bincount(timed.block, timed.weight)
    if not weight.any():
        weight = np.minimum(rounds, 1.0)
    counted = weight > 0
    value = np.bincount(timed.block, timed.seconds)[counted] / rounds[counted]
    weight = weight[counted] / rounds[counted]
    mean, error = trimmed_mean(value, weight)
    return Estimate(mean, error, len(value))


def trimmed_mean(value: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """(mean of the middle 1 - 2 TRIM of the weight, half-width of its interval)."""
    order = np.argsort(value, kind="stable")
    value, share = value[order], weight[order] / weight.sum()
    end = np.cumsum(share)
    inside = np.clip(end, TRIM, 1 - TRIM) - np.clip(end - share, TRIM, 1 - TRIM)
    middle = float(value[np.searchsorted(end, 0.5)])
    # around the median, so that equal seconds give exactly themselves
    mean = middle + float(inside @ (value - middle)) / (1 - 2 * TRIM)
    blocks = 1 / float((share**2).sum())
    if len(value) < FEWEST_BLOCKS:
        return mean, inf
    places = np.minimum(np.searchsorted(end, (TRIM, 1 - TRIM)), len(value) - 1)
    low, high = value[places]
    winsorized = np.clip(value, low, high)
    variance = float(share @ (winsorized - share @ winsorized) ** 2) * blocks / (blocks - 1)
    kept = max(blocks * (1 - 2 * TRIM), 2.0)
    error = sqrt(variance / blocks) / (1 - 2 * TRIM)
    return mean, float(stdtrit(kept - 1, (1 + LEVEL) / 2)) * error


def difference(a: Estimate, b: Estimate) -> Estimate:
    """a - b of independent estimates; the half-widths add as deviations do."""
    half_width = hypot(a.half_width, b.half_width)
    return Estimate(a.seconds - b.seconds, half_width, min(a.samples, b.samples))


def above_zero(e: Estimate) -> Estimate:
    """The estimate with at least 0 seconds."""
    return e._replace(seconds=max(e.seconds, 0.0))


def filled(measured: Mapping[int, Estimate], most: int) -> list[Estimate]:
    """Estimates 0 .. most: seconds between measured ones are linear, without width or sample."""
    sizes = sorted(measured)
    line = np.interp(range(most + 1), sizes, [measured[size].seconds for size in sizes])
    return [measured.get(i, Estimate(float(line[i]), nan, 0)) for i in range(most + 1)]


def mean_of(estimates: Iterable[Estimate]) -> Estimate:
    """Mean of independent estimates."""
    all_ = list(estimates)
    half_width = hypot(*(e.half_width for e in all_)) / len(all_)
    mean = float(np.mean([e.seconds for e in all_]))
    return Estimate(mean, half_width, sum(e.samples for e in all_))


def width_or_none(e: Estimate) -> float | None:
    """The half-width as files hold it."""
    return e.half_width if isfinite(e.half_width) and e.samples else None


def relative_width(timed: Timed, floor: float) -> float:
    """Half-width over max(estimate, floor); infinite for too few blocks."""
    if not len(timed.seconds):
        return inf
    e = estimate(timed)
    scale = max(e.seconds, floor)
    return e.half_width / scale if scale else (inf if e.half_width else 0.0)

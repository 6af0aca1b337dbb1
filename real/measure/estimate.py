"""Estimates: medians with the half-widths of their intervals."""

from collections.abc import Iterable, Mapping, Sequence
from math import hypot, isfinite, nan
from typing import NamedTuple

import numpy as np

from real.measure.interval import median_interval


class Estimate(NamedTuple):
    """Seconds, the half-width of their interval (nan: unknown), and how many rounds were timed."""

    seconds: float
    half_width: float
    samples: int


ZERO = Estimate(0.0, 0.0, 0)


def estimate(values: Sequence[float]) -> Estimate:
    """Median and interval; ValueError for no value."""
    return Estimate(*median_interval(values), len(values))


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

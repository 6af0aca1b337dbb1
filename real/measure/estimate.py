"""Estimates of costs by trimmed means of timing blocks, and warnings of a measurement."""

from collections.abc import Iterable, Mapping, Sequence
from math import hypot, inf, isfinite, nan, sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from simspec import CostModel

LEVEL = 0.95
TRIM = 0.2
"""Share of the weight that is left out at each end: bursts of a shared machine are one-sided."""
FEWEST_BLOCKS = 4
"""Fewest blocks of an interval."""


class Timed(NamedTuple):
    """Seconds of rounds at the machine's typical pace, with the block and weight of each."""

    seconds: np.ndarray
    block: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Timed":
        """Seconds of equal weight, each in a separate block."""
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


DRIFT = 0.02
"""Two estimates of plain decoding may differ by this share,"""
WIDTHS = 1.7
"""or by this number of half-widths of their 95% interval: a false alarm in a thousand sittings."""
MOST_DISTURBED = 0.5
"""Share of blocks that may be left out."""
LEAST_BLOCKS = 8
"""Timing blocks of each of two passes that are compared."""
FASTER, SURE = 0.05, 5.0
"""A wider pass is faster beyond noise where it is by this share of a plain step, and by this
number of standard errors: some hundred pairs of passes are compared."""


def drift_warning(first: Timed, second: Timed, what: str) -> list[str]:
    """One line where two measurements of plain decoding differ beyond DRIFT and noise."""
    if not (len(first.seconds) and len(second.seconds)):
        return []
    base = estimate(first)
    shift = difference(estimate(second), base)
    if abs(shift.seconds) <= max(DRIFT * base.seconds, WIDTHS * shift.half_width):
        return []
    return [
        f"plain decoding drifted: {what} differ by {shift.seconds / base.seconds:+.1%} (interval "
        f"+-{shift.half_width / base.seconds:.1%}), measure again"
    ]


def halves(timed: Timed) -> tuple[Timed, Timed]:
    """The first and the second half of rounds in time."""
    cut = len(timed.seconds) // 2
    return Timed(*(part[:cut] for part in timed)), Timed(*(part[cut:] for part in timed))


def disturbed_warning(blocks: int, disturbed: int) -> list[str]:
    """One line where most timing blocks were left out."""
    if disturbed <= MOST_DISTURBED * blocks:
        return []
    return [
        f"{disturbed} of {blocks} timing blocks were disturbed by other work and left out; "
        "measure again on a quieter machine"
    ]


def faster_wider_warning(cost: CostModel) -> list[str]:
    """One line where a pass over more rows is faster than one over fewer, beyond noise.

    Such costs are not fit to publish: the narrow pass, often the plain step, is handicapped.
    """
    found = faster_wider(cost)
    if found is None:
        return []
    narrow, wide, gap = found
    return [
        f"a pass of {wide + 1} rows is faster than one of {narrow + 1} by "
        f"{gap:.0%} of a plain step: no speedup over it is fit to publish"
    ]


def faster_wider(cost: CostModel) -> tuple[int, int, float] | None:
    """(draft tokens of a pass, of a wider and faster one, the gap in plain steps), beyond noise."""
    precision = cost.precision
    if precision is None or not precision.replicates:
        return None
    drawn = np.array(precision.replicates["verify"])
    drawn[:, np.array(precision.samples["verify"]) < LEAST_BLOCKS] = np.nan  # too few to be sure
    gap = drawn[:, :, None] - drawn[:, None, :]  # of a pass over a pass
    mean, error = gap.mean(0), gap.std(0, ddof=1)
    with np.errstate(invalid="ignore"):
        worst = np.triu(np.where(mean > SURE * error, mean, 0.0), 1)
    narrow, wide = np.unravel_index(int(worst.argmax()), worst.shape)
    if worst[narrow, wide] <= FASTER:
        return None
    return int(narrow), int(wide), float(worst[narrow, wide])

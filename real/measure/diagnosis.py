"""Warnings of a measurement: drift, a busy machine, and cells that stayed wide."""

from collections.abc import Mapping, Sequence
from math import hypot, isfinite

import numpy as np

from real.measure.interval import median_interval

DRIFT = 0.02
"""Two medians of plain decoding may differ by this share, or by their interval."""
BUSY_SPREAD = 1.3
"""90th over 10th percentile of plain steps: an idle machine stays below."""
BUSY_SHARE = 0.9
"""Share of the time that a process on the CPU runs: an idle machine stays above."""
SHOWN = 3
"""Wide cells that are named."""


def relative_difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """(median of the second over that of the first - 1, half-width)."""
    (a, wide_a), (b, wide_b) = median_interval(first), median_interval(second)
    return b / a - 1.0, hypot(wide_a, wide_b) / a


def drift_warning(first: Sequence[float], second: Sequence[float], what: str) -> list[str]:
    """One line where two measurements of plain decoding differ beyond DRIFT and their interval."""
    if not (len(first) and len(second)):
        return []
    shift, half_width = relative_difference(first, second)
    if abs(shift) <= max(DRIFT, half_width):
        return []
    return [
        f"plain decoding drifted: {what} differ by {shift:+.1%} (interval +-{half_width:.1%}), "
        "measure again on an idle machine"
    ]


def halves(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """The first and the second half of values in time."""
    return values[: len(values) // 2], values[len(values) // 2 :]


def busy_warning(plain: Sequence[float], counted: float, share: float | None) -> list[str]:
    """One line where plain steps spread widely, or this process ran less than the clock did.

    counted: share of the sitting that was fast enough to count; share: processor seconds of this
    process over wall-clock seconds, None: not on a CPU.
    """
    if not len(plain):
        return []
    low, high = np.quantile(np.asarray(plain), (0.1, 0.9))
    signs = []
    if high > BUSY_SPREAD * low:
        signs.append(
            f"the 90th percentile of plain steps is {high / low:.2f} times the 10th, "
            f"of which the fast {counted:.0%} count"
        )
    if share is not None and share < BUSY_SHARE:
        signs.append(f"this process ran {share:.0%} of the time")
    if not signs:
        return []
    return [f"the machine was busy: {' and '.join(signs)}; measure again on an idle one"]


def wide_warning(wide: Mapping[str, float], precision: float) -> list[str]:
    """One line that names the widest cells."""
    if not wide:
        return []
    worst = sorted(wide.items(), key=lambda item: -item[1])[:SHOWN]
    named = ", ".join(
        f"{name} {f'+-{width:.1%}' if isfinite(width) else '(too few rounds)'}"
        for name, width in worst
    )
    return [
        f"{len(wide)} cells are wider than +-{precision:.0%}: {named}"
        + ", .." * (len(wide) > SHOWN)
        + "; give more --seconds, or an idle machine"
    ]

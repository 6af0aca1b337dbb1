"""Warnings of a measurement: drift, disturbed blocks, and wide passes that are faster."""

import numpy as np

from real.measure.estimate import Timed, difference, estimate
from simspec import CostModel

DRIFT = 0.02
"""Two estimates of plain decoding may differ by this share,"""
WIDTHS = 1.7
"""or by so many half-widths of their 95% interval: a false alarm in a thousand sittings."""
MOST_DISTURBED = 0.5
"""Share of blocks that may be left out."""
LEAST_BLOCKS = 8
"""Timing blocks of each of two passes that are compared."""
FASTER, SURE = 0.05, 5.0
"""A wider pass is faster beyond noise where it is by this share of a plain step, and by so many
standard errors: some hundred pairs of passes are compared."""


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
    precision = cost.precision
    if precision is None or not precision.replicates:
        return []
    drawn = np.array(precision.replicates["verify"])
    drawn[:, np.array(precision.samples["verify"]) < LEAST_BLOCKS] = np.nan  # too few to be sure
    gap = drawn[:, :, None] - drawn[:, None, :]  # of a pass over a pass
    mean, error = gap.mean(0), gap.std(0, ddof=1)
    with np.errstate(invalid="ignore"):
        worst = np.triu(np.where(mean > SURE * error, mean, 0.0), 1)
    narrow, wide = np.unravel_index(int(worst.argmax()), worst.shape)
    if worst[narrow, wide] <= FASTER:
        return []
    return [
        f"a pass of {wide + 1} rows is faster than one of {narrow + 1} by "
        f"{worst[narrow, wide]:.0%} of a plain step: no speedup over it is fit to publish"
    ]

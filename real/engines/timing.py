"""Timing blocks of a run: passes in units of the plain passes of the same block."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from real.engines.rows import Row
from real.engines.waves import lock_step
from real.measure.pace import TimingBlock


@dataclass(frozen=True)
class TimedBlock:
    """One timing block: seconds of a plain pass, and of passes by their draft tokens over it."""

    plain: float
    ratios: Mapping[int, float]
    seconds: float
    disturbed: bool


def whole_blocks(about: Mapping[str, Any], rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by timing block: those that one process ran at every draft length and policy."""
    found = defaultdict(list)
    for row in rows:
        found[row.block].append(row)
    arms = len(about["plan"]["ks"]) + len(about["plan"].get("policies", ()))
    return [
        part
        for _, part in sorted(found.items())
        if len({row.session for row in part}) == 1
        and len({row.arm for row in part}) == arms
        and len({len([r for r in part if r.arm == row.arm]) for row in part}) == 1
    ]


def timed_block(rows: Sequence[Row], together: bool = False) -> TimedBlock | None:
    """The block's ratios; None where it has no plain pass after a prompt.

    together: the requests of a draft length share their passes; those of all of them count, where
    they draft alike. Without an engine's clock of passes, the seconds of requests are sums of their
    passes: the costs of the run's draft lengths follow by least squares, those between are linear.
    """
    waves = [[row] for row in rows]
    if together:
        waves = [[row for row in rows if row.k == k] for k in sorted({row.k for row in rows})]
    seconds = sum(max(row.finished.seconds for row in wave) for wave in waves)
    if together or all(row.finished.pass_seconds is not None for row in rows):
        taken = defaultdict(list)
        pace: list[float] = []
        for wave in waves:
            count = min(len(row.finished.passes) for row in wave)
            clock = lock_step(wave)[1:count]
            for i, spent in enumerate(clock, 1):
                drafted = {row.finished.passes[i][1] for row in wave}
                if len(drafted) == 1:
                    taken[wave[0].k == 0, drafted.pop()].append(spent)
            if wave[0].k == 0 and clock:
                pace += (np.array(clock) / np.median(clock)).tolist()
        plain = taken.pop((True, 0), [])
        if not plain or not np.mean(plain) > 0:
            return None
        ratios = {d: float(np.mean(s) / np.mean(plain)) for (_, d), s in taken.items()}
        return TimedBlock(float(np.mean(plain)), ratios, seconds, TimingBlock(pace).disturbed)
    knots = sorted({row.k for row in rows})
    counts = np.array([_hats(row, knots) for row in rows])
    decoding = np.array([row.finished.seconds - row.finished.first_seconds for row in rows])
    if not counts.any():
        return None
    from scipy.optimize import nnls  # most commands start sooner without

    costs, _ = nnls(counts, np.maximum(decoding, 0.0))
    if not costs[0] > 0:
        return None
    ratios = {d: float(c / costs[0]) for d, c in zip(knots[1:], costs[1:]) if c > 0}
    return TimedBlock(float(costs[0]), ratios, seconds, False)


def _hats(row: Row, knots: Sequence[int]) -> list[float]:
    """How often the row's passes count each knot, a pass between two knots shared by both."""
    counted = np.zeros(len(knots))
    for _, drafted, _ in row.finished.passes[1:]:
        place = np.interp(drafted, knots, range(len(knots)))
        low = int(place)
        counted[low] += 1 - (place - low)
        if place > low:
            counted[low + 1] += place - low
    return counted.tolist()

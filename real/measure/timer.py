"""Seconds of work on a device, piece by piece, and how they spread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch


@dataclass(frozen=True)
class Spread:
    """Median, 10th and 90th percentile of repeats."""

    median: float
    p10: float
    p90: float


def spread(values) -> Spread:
    """The Spread of one value or more, percentiles on the line between neighbours; ValueError for none."""
    if not len(values):
        raise ValueError("no repeats to take a median of; expected at least one")
    return Spread(*(float(x) for x in np.percentile(np.asarray(values, np.float64), (50, 10, 90))))


def laps(
    works: Sequence[Callable[[], object]], device, timer: Callable[[], float] | None = None
) -> list[float]:
    """Seconds of each of `works`, done one after the other.

    On CUDA the device's own time between two events around each, read after the last: the host queues ahead, so a launch counts only
    where the device has to wait for it. Elsewhere, and with a `timer`, the timer's seconds around each, the device waited for.
    """
    device = torch.device(device)
    if device.type == "cuda" and timer is None:
        return _events(works, device)
    now = timer or perf_counter
    wait = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
    found = []
    for work in works:
        wait()
        then = now()
        work()
        wait()
        found.append(now() - then)
    return found


def _events(works, device) -> list[float]:
    with torch.cuda.device(device):
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in works]
        for work, (start, stop) in zip(works, marks):
            start.record()
            work()
            stop.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) / 1e3 for start, stop in marks]

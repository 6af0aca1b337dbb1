"""Elapsed seconds of work on a device, and quantiles of repeats."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

Work = Callable[[], object]
Timer = Callable[[], float]


@dataclass(frozen=True)
class Quantiles:
    """Median, 10th and 90th percentile of repeats."""

    median: float
    p10: float
    p90: float


def quantiles(values: Sequence[float]) -> Quantiles:
    """Quantiles, linearly interpolated; ValueError for no value."""
    if not len(values):
        raise ValueError("no repeats to take a median of; expected at least one")
    percentiles = np.percentile(np.asarray(values, np.float64), (50, 10, 90))
    return Quantiles(*(float(x) for x in percentiles))


def elapsed(
    works: Sequence[Work], device: str | torch.device, timer: Timer | None = None
) -> list[float]:
    """Seconds of each of `works`, run one after the other.

    | device | seconds |
    | --- | --- |
    | CUDA without a `timer` | between two events around each work, read after the last one |
    | otherwise | of the timer (default `perf_counter`) around each, the device synchronized |

    Events let the host queue ahead: a launch counts only where the device waits for it.
    """
    device = torch.device(device)
    if device.type == "cuda" and timer is None:
        return _between_events(works, device)
    now = timer or perf_counter
    wait = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
    seconds = []
    for work in works:
        wait()
        begin = now()
        work()
        wait()
        seconds.append(now() - begin)
    return seconds


def _between_events(works: Sequence[Work], device: torch.device) -> list[float]:
    with torch.cuda.device(device):
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in works]
        for work, (start, stop) in zip(works, events):
            start.record()
            work()
            stop.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) / 1e3 for start, stop in events]

"""Limits of a device: memory bandwidth, rate of matrix products, and the wait of the host."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from real.model.random_models import free

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


WARMUP = 3
"""Repeats that are not counted, while clocks rise."""
COPY_BYTES = {"cuda": 1 << 31, "cpu": 1 << 26}
"""Bytes of a copy, far more than any cache near the cores holds."""
MATRIX_SIDE = {"cuda": 8192, "cpu": 512}


@dataclass(frozen=True)
class DeviceSpeeds:
    """Limits of one device in one run.

    | field | unit | meaning |
    | --- | --- | --- |
    | bandwidth | B/s | of copies inside its memory, bytes read and bytes written both counted |
    | rate | FLOP/s | of a square matrix product in the models' dtype; a multiply-add counts 2 |
    """

    bandwidth: Quantiles
    rate: Quantiles


def device_speeds(
    dtype: torch.dtype, device: str, repeats: int = 20, timer: Timer | None = None
) -> DeviceSpeeds:
    """`copy_bandwidth` and `matrix_rate`."""
    return DeviceSpeeds(
        copy_bandwidth(device, repeats=repeats, timer=timer),
        matrix_rate(dtype, device, repeats=repeats, timer=timer),
    )


@torch.inference_mode()
def copy_bandwidth(
    device: str, size: int | None = None, repeats: int = 20, timer: Timer | None = None
) -> Quantiles:
    """Bytes a second of a copy of `size` bytes within the device's memory: 2 size / seconds.

    The default size is COPY_BYTES, less where the device has little free. Traffic that only reads
    may be faster. ValueError for no repeat.
    """
    if size is None:
        size = int(min(COPY_BYTES[torch.device(device).type], free(device) // 8))
    source = torch.empty(size // 8, dtype=torch.int64, device=device).random_()
    copy = torch.empty_like(source)
    seconds = _repeat(lambda: copy.copy_(source), device, repeats, timer)
    return quantiles([2 * 8 * (size // 8) / s for s in seconds])


@torch.inference_mode()
def matrix_rate(
    dtype: torch.dtype,
    device: str,
    side: int | None = None,
    repeats: int = 20,
    timer: Timer | None = None,
) -> Quantiles:
    """FLOP a second of the product of two `side` x `side` matrices: 2 side^3 / seconds.

    ValueError for no repeat.
    """
    n = side or MATRIX_SIDE[torch.device(device).type]
    random = torch.Generator(device).manual_seed(0)
    a, b = (
        torch.empty(n, n, dtype=dtype, device=device).normal_(std=n**-0.5, generator=random)
        for _ in range(2)
    )
    out = torch.empty_like(a)
    seconds = _repeat(lambda: torch.mm(a, b, out=out), device, repeats, timer)
    return quantiles([2 * n**3 / s for s in seconds])


@torch.inference_mode()
def host_wait(
    vocab: int, dtype: torch.dtype, device: str, repeats: int = 200, timer: Timer | None = None
) -> Quantiles:
    """Seconds until the host knows the argmax of one row of logits `[vocab]`, from an idle device.

    A drafted token waits this long in addition to its pass: kernels, launches, transfer and wait.
    Measured by the host's clock. ValueError for no repeat.
    """
    logits = torch.empty(1, vocab, dtype=dtype, device=device).normal_()
    work = lambda: int(logits.double().argmax(-1))  # noqa: E731
    return quantiles(_repeat(work, device, repeats, timer or perf_counter))


def _repeat(work: Work, device: str, repeats: int, timer: Timer | None) -> list[float]:
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}, expected at least 1")
    for _ in range(WARMUP):
        work()
    return elapsed([work] * repeats, device, timer)

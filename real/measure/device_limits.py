"""What a device gives at best: bytes a second of its memory, and operations a second of matrix products."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from real.measure.timer import Spread, laps, spread
from real.model.random_models import free

WARM = 3  # repeats that are not counted: clocks rise
COPIED = {"cuda": 1 << 31, "cpu": 1 << 26}
"""Bytes of a copy, well beyond any cache near the cores."""
SIDE = {"cuda": 8192, "cpu": 512}
"""Of the square product."""


@dataclass(frozen=True)
class Speeds:
    """Of one device in one run.

    | field | unit | meaning |
    | --- | --- | --- |
    | bandwidth | B/s | of copies inside its memory, bytes read and bytes written both counted |
    | rate | FLOP/s | of a square matrix product in the models' dtype, a product and a sum are two |
    """

    bandwidth: Spread
    rate: Spread


def speeds(
    dtype: torch.dtype, device: str, repeats: int = 20, timer: Callable[[], float] | None = None
) -> Speeds:
    """Both figures; see `copy_bandwidth` and `matrix_rate`."""
    return Speeds(
        copy_bandwidth(device, repeats=repeats, timer=timer),
        matrix_rate(dtype, device, repeats=repeats, timer=timer),
    )


@torch.inference_mode()
def copy_bandwidth(
    device: str,
    size: int | None = None,
    repeats: int = 20,
    timer: Callable[[], float] | None = None,
) -> Spread:
    """Bytes a second of copying `size` bytes from one place of the device's memory to another: 2 size / s, for each is read and written.

    `size` is COPIED's, less where the device has little free. Traffic that is read only may go somewhat faster. ValueError for no repeat.
    """
    if size is None:
        size = int(min(COPIED[_kind(device)], free(device) // 8))
    source = torch.empty(size // 8, dtype=torch.int64, device=device).random_()
    there = torch.empty_like(source)
    seconds = _repeated(lambda: there.copy_(source), device, repeats, timer)
    return spread([2 * 8 * (size // 8) / s for s in seconds])


@torch.inference_mode()
def matrix_rate(
    dtype: torch.dtype,
    device: str,
    side: int | None = None,
    repeats: int = 20,
    timer: Callable[[], float] | None = None,
) -> Spread:
    """Operations a second of the product of two normal `side` x `side` matrices: 2 side^3 / s. ValueError for no repeat."""
    n = side or SIDE[_kind(device)]
    random = torch.Generator(device).manual_seed(0)
    a, b = (
        torch.empty(n, n, dtype=dtype, device=device).normal_(std=n**-0.5, generator=random)
        for _ in range(2)
    )
    out = torch.empty_like(a)
    return spread(
        [2 * n**3 / s for s in _repeated(lambda: torch.mm(a, b, out=out), device, repeats, timer)]
    )


@torch.inference_mode()
def host_wait(
    vocab: int,
    dtype: torch.dtype,
    device: str,
    repeats: int = 200,
    timer: Callable[[], float] | None = None,
) -> Spread:
    """Seconds until the host knows the best of one row of logits `[vocab]`: what every drafted token waits for beside its own pass.

    By the host's clock, from an idle device: the kernels of the pick, their launches, the transfer and the wait. ValueError for no repeat.
    """
    logits = torch.empty(1, vocab, dtype=dtype, device=device).normal_()
    timer = timer or perf_counter
    return spread(_repeated(lambda: int(logits.double().argmax(-1)), device, repeats, timer))


def _repeated(work, device, repeats: int, timer) -> list[float]:
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}, expected at least 1")
    for _ in range(WARM):
        work()
    return laps([work] * repeats, device, timer)


def _kind(device) -> str:
    return torch.device(device).type

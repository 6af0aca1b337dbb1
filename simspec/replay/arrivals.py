"""Arrivals: when requests reach a server, and which sequence of a recording each decodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from simspec.numerics.compile import cached_njit
from simspec.numerics.rng import ARRIVAL, block, check_seed
from simspec.output.files import read_at_most

# mypy: disable-error-code="no-untyped-def"

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_REQUESTS = 1 << 20
LATEST = 1e9
"""Seconds of the last arrival."""
MOST_BYTES = 32 << 20
"""Of a file of arrivals."""


@dataclass(frozen=True)
class Requests:
    """Requests in order of arrival.

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | arrival | float64[n] | seconds, growing or equal, from 0 to 1e9 |
    | sequence | int64[n] | the sequence of the recording that each decodes |

    ValueError for other times, and for none or more than 2^20 requests.
    """

    arrival: Array
    sequence: Integers

    def __post_init__(self) -> None:
        arrival = np.asarray(self.arrival, np.float64)
        object.__setattr__(self, "arrival", arrival)
        object.__setattr__(self, "sequence", np.asarray(self.sequence, np.int64))
        if not 1 <= len(arrival) <= MOST_REQUESTS or len(arrival) != len(self.sequence):
            raise ValueError(
                f"{len(arrival)} arrivals of {len(self.sequence)} sequences, expected 1 to "
                f"{MOST_REQUESTS} of each"
            )
        ordered = (np.diff(arrival) >= 0).all() and arrival[0] >= 0 and arrival[-1] <= LATEST
        if not (np.isfinite(arrival).all() and ordered):
            raise ValueError(
                f"arrivals are no growing seconds from 0 to {LATEST:g}: sort them, and count from "
                "the first"
            )


def poisson_requests(
    count: int, rate: float, sequences: int, seed: int = 0, burst: float = 1.0
) -> Requests:
    """Requests of a Poisson process of `rate` a second, in bursts; each decodes a drawn sequence.

    Bursts start at rate / burst and hold N requests at one time, P(N = n) = (1 - 1 / burst)^(n - 1)
    / burst. Draws are those of `uniform(seed, i, 0, slot, ARRIVAL)` for request i: slot 0 its
    gap, 1 its sequence, 2 whether it belongs to the burst before; so rates share them. ValueError
    for numbers outside their range.
    """
    if not 1 <= count <= MOST_REQUESTS:
        raise ValueError(f"requests is {count}, expected 1 to {MOST_REQUESTS}")
    if not (np.isfinite(rate) and rate > 0):
        raise ValueError(f"rate is {rate}, expected requests a second > 0")
    if not 1 <= burst <= MOST_REQUESTS:
        raise ValueError(f"burst is {burst}, expected 1 (Poisson) or more requests on average")
    draws = _draws(check_seed(seed), count)
    gaps = np.where(draws[:, 2] < 1 - 1 / burst, 0.0, -np.log(draws[:, 0]) * burst / rate)
    return Requests(np.cumsum(gaps), _drawn(draws, sequences))


def recorded_requests(
    times: Sequence[float], sequences: int, seed: int = 0, rate: float | None = None
) -> Requests:
    """Requests at these times, scaled to a mean of `rate` a second where one is given.

    The own rate of n times is (n - 1) / (last - first). Sequences are drawn as in
    `poisson_requests`. ValueError as of `Requests`, and for a rate where all times are equal.
    """
    arrival = np.asarray(times, np.float64)
    if rate is not None:
        span = arrival[-1] - arrival[0] if len(arrival) else 0.0
        if not (span > 0 and np.isfinite(rate) and rate > 0):
            raise ValueError(f"arrivals over {span:g} seconds have no rate to bring to {rate}")
        arrival = (arrival - arrival[0]) * ((len(arrival) - 1) / span / rate)
    draws = _draws(check_seed(seed), len(arrival))
    return Requests(arrival, _drawn(draws, sequences))


def read_arrivals(path: str | PathLike[str]) -> list[float]:
    """Arrival times of a file, seconds, one a line; ValueError, one line, for anything else."""
    try:
        lines = read_at_most(path, MOST_BYTES).decode("utf-8").split()
        if not 1 <= len(lines) <= MOST_REQUESTS:
            raise ValueError(f"it has {len(lines)} times, expected 1 to {MOST_REQUESTS}")
        times = [float(line) for line in lines]
        Requests(np.array(times), np.zeros(len(times), np.int64))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path}: no arrival times: {reason}") from None
    return times


@cached_njit
def _draws(seed, count):
    draws = np.empty((count, 3))
    for i in range(count):
        draws[i, 0], draws[i, 1], draws[i, 2], _ = block(seed, i, 0, 0, ARRIVAL)
    return draws


def _drawn(draws: Array, sequences: int) -> Integers:
    return (draws[:, 1] * sequences).astype(np.int64)

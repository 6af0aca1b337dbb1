"""Figures of a run of a server: throughput, latencies, goodput, batch size and busy time."""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from simspec.replay.load import Served

Array = NDArray[np.float64]
BINS = 20
"""Parts of the counted time in `batch_by_time`."""


@dataclass(frozen=True)
class Counting:
    """Which requests count, and which are good.

    | field | meaning |
    | --- | --- |
    | warm_up | share of the requests, first and last, that no figure counts |
    | ttft, tpot | seconds that a good request keeps: to its first token, for each later one |

    ValueError for others than a share below a half, and seconds above 0.
    """

    warm_up: float = 0.2
    ttft: float = inf
    tpot: float = inf

    def __post_init__(self) -> None:
        if not 0 <= self.warm_up < 0.5:
            raise ValueError(f"warm-up is {self.warm_up}, expected a share from 0 to below 0.5")
        if not (self.ttft > 0 and self.tpot > 0):
            raise ValueError(
                f"targets are {self.ttft} and {self.tpot} seconds, expected more than 0"
            )

    @property
    def limited(self) -> bool:
        """Whether there is a target."""
        return min(self.ttft, self.tpot) < inf


@dataclass(frozen=True)
class Spread:
    """Mean and percentiles over requests, in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Array) -> "Spread":
        """Of these values without NaN; NaN of none."""
        kept = values[~np.isnan(values)]
        if not len(kept):
            return cls(*[float("nan")] * 4)
        return cls(float(kept.mean()), *map(float, np.percentile(kept, (50, 90, 99))))


@dataclass(frozen=True)
class LoadFigures:
    """Figures of one run. Requests are counted but the first and last `warm_up` of them.

    Rates count steps from the arrival of the first counted request to that of the last; without a
    warm-up to the last finish.

    | field | unit, formula |
    | --- | --- |
    | offered | requests that arrive a second |
    | tokens_per_second | output tokens of the steps that end in that time |
    | ttft, latency | Spread: from arrival to the first token's step, to the last token's |
    | tpot | Spread: (latency - ttft) / (tokens - 1), of requests of several tokens |
    | wait | Spread: in the queue |
    | good | share of the requests that keep both targets |
    | goodput | good x counted requests a second |
    | batch | requests that the server holds, a mean over time |
    | busy | share of the time in which a step runs |
    | batch_by_time | (float,) [20]: the batch in equal parts of that time |
    """

    offered: float
    tokens_per_second: float
    ttft: Spread
    latency: Spread
    tpot: Spread
    wait: Spread
    good: float
    goodput: float
    batch: float
    busy: float
    batch_by_time: tuple[float, ...]

    def value(self, objective: str) -> float:
        """The figure of an objective: the mean of a Spread."""
        found = getattr(self, objective)
        return float(found.mean if isinstance(found, Spread) else found)


def load_figures(served: Served, counting: Counting) -> LoadFigures:
    """The figures of a run."""
    count = len(served.arrival)
    cut = int(counting.warm_up * count)
    kept = slice(cut, count - cut)
    begin = float(served.arrival[cut])
    end = float(served.arrival[count - 1 - cut] if cut else served.finish.max())
    span = end - begin if end > begin else float("nan")
    ttft, latency = (getattr(served, name) - served.arrival for name in ("first", "finish"))
    later = np.maximum(served.tokens - 1, 1)
    tpot = np.where(served.tokens > 1, (latency - ttft) / later, np.nan)
    good = (ttft <= counting.ttft) & ~(tpot > counting.tpot)
    ends = served.begin + served.seconds
    share, counted = float(good[kept].mean()), count - 2 * cut
    edges = np.linspace(begin, end, BINS + 1)
    held = _between(served, served.held * served.seconds, edges)
    busy = _between(served, served.seconds, edges)
    with np.errstate(invalid="ignore", divide="ignore"):
        by_time = tuple((np.diff(held) / np.diff(edges)).tolist())
    return LoadFigures(
        offered=counted / span,
        tokens_per_second=float(served.emitted[(ends > begin) & (ends <= end)].sum()) / span,
        ttft=Spread.of(ttft[kept]),
        latency=Spread.of(latency[kept]),
        tpot=Spread.of(tpot[kept]),
        wait=Spread.of((served.start - served.arrival)[kept]),
        good=share,
        goodput=share * counted / span,
        batch=float(held[-1] - held[0]) / span,
        busy=float(busy[-1] - busy[0]) / span,
        batch_by_time=by_time,
    )


def _between(served: Served, of_step: Array, edges: Array) -> Array:
    """The sum of a quantity of steps up to each edge, even within a step."""
    sums = np.cumsum(of_step)
    times = np.stack((served.begin, served.begin + served.seconds), axis=1).ravel()
    values = np.stack((sums - of_step, sums), axis=1).ravel()
    return np.asarray(np.interp(edges, times, values), np.float64)

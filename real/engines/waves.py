"""Waves: requests that start together and share every pass until they end; their steps and prices.

A step is one pass of the engine over all requests of a wave that still run.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from real.engines.rows import Arm, Row
from simspec import CostModel
from simspec.cost.table import CostTable
from simspec.engines.exports import lengths_by_batch

MOST_REQUESTS, MOST_PROMPTS = 10_000, 1_000_000
"""Requests of a wave, as of a plan, and prompts of a run."""


def wave_sizes(about: Mapping[str, Any]) -> list[int]:
    """Requests of each group of prompts, which is a wave; ValueError where requests take turns."""
    plan = about["plan"]
    numbers: list[Any] = [plan["concurrent"], plan.get("group"), about.get("count")]
    limits = MOST_REQUESTS, MOST_REQUESTS, MOST_PROMPTS
    if any(type(n) is not int or not 1 <= n <= most for n, most in zip(numbers, limits)):
        raise ValueError(
            f"{numbers[0]} requests in flight, groups of {numbers[1]} and {numbers[2]} prompts are "
            "no run's: run it again"
        )
    concurrent, group, count = numbers
    if group > concurrent:
        raise ValueError(
            f"blocks of {group} requests run {concurrent} together, so that some start later: run "
            f"with --group {concurrent}"
        )
    return [min(group, count - first) for first in range(0, count, group)]


def batch_size(about: Mapping[str, Any]) -> int:
    """Requests of a wave; ValueError where they take turns, or no wave has all in flight."""
    size, concurrent = max(wave_sizes(about)), int(about["plan"]["concurrent"])
    if size != concurrent:
        raise ValueError(
            f"{concurrent} requests may be in flight, and waves have {size}: run with --group "
            f"{concurrent}, on as many prompts or more"
        )
    return size


def whole_waves(about: Mapping[str, Any], rows: Sequence[Row]) -> dict[tuple[int, Arm], list[Row]]:
    """{(block, arm): rows} of the waves all of whose requests are among the rows.

    ValueError where requests take turns, or did not start in one pass.
    """
    sizes = wave_sizes(about)
    found = defaultdict(list)
    for row in rows:
        found[row.block, row.arm].append(row)
    held = {key: wave for key, wave in found.items() if len(wave) == sizes[key[0] % len(sizes)]}
    for wave in held.values():
        for session in {row.session for row in wave}:  # a wave that was killed ran twice
            lock_step([row for row in wave if row.session == session])
    return held


def lock_step(wave: Sequence[Row]) -> tuple[float, ...]:
    """Seconds of the wave's passes, the prompts' first; ValueError where they are not shared."""
    clocks = [row.finished.pass_seconds for row in wave]
    longest: tuple[float, ...] = ()
    for clock in clocks:
        if clock is None:
            raise ValueError(
                "the engine has no clock of its passes, which shows who shared them: give "
                "--concurrent 1"
            )
        longest = max(longest, clock, key=len)
    if any(clock != longest[: len(clock)] for clock in clocks if clock is not None):
        raise ValueError(
            f"the {len(wave)} requests of block {wave[0].block} did not start in one pass: give "
            "shorter prompts, or a smaller --concurrent"
        )
    return longest


def lengths_of(about: Mapping[str, Any]) -> list[int]:
    """Draft length of a pass by its number of requests, from 0; empty without a schedule."""
    if not about.get("schedule"):
        return []
    return lengths_by_batch(about["schedule"], max(about["plan"]["ks"]), max(wave_sizes(about)))


def steps(passes: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(requests int64[T], draft tokens int64[T]) of a wave's steps, the prompts' step left out.

    passes: the draft tokens of each request's passes, the prompt's pass first.
    """
    count = max(map(len, passes)) - 1
    active, drafted = np.zeros((2, count), np.int64)
    for of_request in passes:
        later = of_request[1:]
        active[: len(later)] += 1
        drafted[: len(later)] += np.array(later, np.int64)
    return active, drafted


@dataclass(frozen=True)
class StepPrices:
    """Seconds of steps by requests and draft tokens, at the costs and at their R replicates.

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | sizes | int64[nb] | measured numbers of requests |
    | plain | float64[nb, 1 + R] | a plain step |
    | verify | float64[nb, 1 + R, K + 1] | a step by the draft tokens of each request |
    """

    sizes: np.ndarray
    plain: np.ndarray
    verify: np.ndarray

    @classmethod
    def of(cls, cost: CostModel | CostTable) -> "StepPrices":
        """Prices of a CostModel, which is of one request, or of a table of one context."""
        sizes = cost.batch if isinstance(cost, CostTable) else (1,)
        cells = [cost.at(size) if isinstance(cost, CostTable) else cost for size in sizes]
        count = min(len(cell.replicates) for cell in cells)
        every = [(cell, *cell.replicates[:count]) for cell in cells]
        return cls(
            np.array(sizes, np.int64),
            np.array([[cell.baseline] * (1 + count) for cell in cells]),
            np.array([[held.verify for held in of_size] for of_size in every]),
        )

    @property
    def longest(self) -> int:
        """The longest draft that is priced."""
        return self.verify.shape[2] - 1

    def check(self, fewest: int, most: int) -> None:
        """ValueError unless passes of that many requests lie between measured sizes."""
        for number, missing in ((most, most), (fewest, 1)):
            if not self.sizes[0] <= number <= self.sizes[-1]:
                raise ValueError(
                    f"the costs price {self.sizes[0]} to {self.sizes[-1]} requests a pass, the run "
                    f"has passes of {number}: measure --concurrent {missing} too"
                )

    def seconds(self, active: np.ndarray, drafted: np.ndarray | None = None) -> np.ndarray:
        """float64[1 + R]: the sum over steps; drafted None: plain decoding.

        A step of n requests and d draft tokens is linear in d / n between the entries of a size,
        and linear in n between sizes. ValueError for steps smaller or larger than any measured.
        """
        if not len(active):
            return np.zeros(self.plain.shape[1])
        self.check(int(active.min()), int(active.max()))
        at_size = self.plain[:, :, None]
        if drafted is not None:
            each = drafted / active
            low = np.minimum(each.astype(np.int64), max(self.verify.shape[2] - 2, 0))
            high = np.minimum(low + 1, self.verify.shape[2] - 1)
            first, second = self.verify[:, :, low], self.verify[:, :, high]
            at_size = first + (second - first) * (each - low)
        return _between(
            self.sizes, np.broadcast_to(at_size, (*self.plain.shape, len(active))), active
        )


def _between(sizes: np.ndarray, values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """float64[1 + R]: sum over steps of values[nb, 1 + R, T], linear between sizes."""
    high = np.searchsorted(sizes, at)
    low = np.maximum(high - 1, 0)
    low = np.where(sizes[high] == at, high, low)
    share = (at - sizes[low]) / np.maximum(sizes[high] - sizes[low], 1)
    step = np.arange(len(at))
    first, second = values[low, :, step], values[high, :, step]  # [T, 1 + R]
    seconds: np.ndarray = (first + (second - first) * share[:, None]).sum(axis=0)
    return seconds

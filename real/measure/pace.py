"""The machine's pace: how long a plain step takes at the moment.

Shared machines change their speed within seconds, and what they slow most differs. So rounds count
that ran while the machine was fast, each scaled by the pace of its moment.
"""

from typing import Protocol

import numpy as np

from real.draft import Silent
from real.measure.blocks import LoopBlock
from real.measure.job import PLAIN, Job
from real.measure.samples import Samples
from real.model.target import Target
from real.sampling import Rule

ROUNDS = 8
"""Plain steps that measure the pace, before the first block of a sitting and behind every one."""
FAST = 1.3
"""Rounds count between two paces within this multiple of the sitting's 10th percentile."""


class Paced(Protocol):
    """Timed seconds that wait for the pace behind them."""

    def settle(self, before: float, after: float) -> None:
        """Notes the seconds of plain steps before and behind what waits."""


class Pace:
    """Median seconds of a plain step, each time it was measured; `paced` are settled by it."""

    def __init__(self, target: Target, rule: Rule, prompt: list[int]):
        self.seconds: list[float] = []
        self.paced: list[Paced] = []
        self._samples = Samples()
        self._block = LoopBlock(target, Silent(), rule, prompt, [Job(PLAIN)], self._samples)

    def measure(self) -> None:
        """Takes `ROUNDS` plain steps, which settle what was timed since the last ones."""
        self._samples.rounds.clear()
        self._block.run(np.random.default_rng(0), ROUNDS, True, 0.0)
        self.seconds.append(float(np.median(self._samples.seconds(Job(PLAIN)))))
        if len(self.seconds) > 1:
            for timed in self.paced:
                timed.settle(*self.seconds[-2:])

    @property
    def limit(self) -> float:
        """The slowest pace that counts; infinite while none is known."""
        return FAST * float(np.quantile(self.seconds, 0.1)) if self.seconds else float("inf")

    @property
    def typical(self) -> float:
        """Median of the paces that count, which all rounds are scaled to; 0 while none is known."""
        limit = self.limit
        counted = [seconds for seconds in self.seconds if seconds <= limit]
        return float(np.median(counted)) if counted else 0.0

    @property
    def share(self) -> float:
        """Share of the measurements that count."""
        limit = self.limit
        return float(np.mean([seconds <= limit for seconds in self.seconds or [0.0]]))

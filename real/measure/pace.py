"""The machine's pace: how long a plain step takes at the moment.

Shared machines change their speed within seconds. A round is counted at the pace of its moment, so
that the costs of rounds stay comparable.
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


class Paced(Protocol):
    """Timed seconds that wait for the pace behind them."""

    def settle(self, before: float, after: float) -> None:
        """Multiplies the seconds that wait, in order, by factors between `before` and `after`."""


class Pace:
    """Median seconds of a plain step, each time it was measured; those of `paced` follow it."""

    def __init__(self, target: Target, rule: Rule, prompt: list[int], paced: list[Paced]):
        self.seconds: list[float] = []
        self.paced = paced
        self._samples = Samples()
        self._block = LoopBlock(target, Silent(), rule, prompt, [Job(PLAIN)], self._samples)

    def measure(self) -> None:
        """Takes `ROUNDS` plain steps; scales what was timed since the last ones to the first."""
        self._samples.rounds.clear()
        self._block.run(np.random.default_rng(0), ROUNDS, True, 0.0)
        self.seconds.append(float(np.median(self._samples.seconds(Job(PLAIN)))))
        if len(self.seconds) > 1 and min(self.seconds) > 0:
            before, after = self.seconds[0] / np.array(self.seconds[-2:])
            for timed in self.paced:
                timed.settle(before, after)

    def typical(self) -> float:
        """What seconds of the first measurement are multiplied by, to be those of the median."""
        known = bool(self.seconds) and self.seconds[0] > 0
        return float(np.median(self.seconds)) / self.seconds[0] if known else 1.0

"""The machine's pace: seconds of the target's one-row pass, timed before and after every round.

A shared machine changes its speed within seconds. So a round is timed in units of the passes around
it, and timing blocks of at most a second are what an interval counts as independent.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np

from real.decode.verify import VERIFICATION, PhaseTimer
from real.model.target import Target

BLOCK_SECONDS = 1.0
STOLEN = 0.05
"""A block is left out where the hypervisor took more than this share of its time,"""
SPREAD = 0.25
"""or where the middle half of its one-row passes is wider than this share of their median."""
FLOOR = 0.05
"""Spread below which blocks weigh alike: few passes say no more about a block."""
ROUNDS = 8
"""One-row passes that say the pace around a run of bare batched passes."""


class Paced(Protocol):
    """Timed seconds that wait for the pace measured after them."""

    def settle(self, before: float, after: float) -> None:
        """Notes the seconds of one-row passes before and after what waits."""


@dataclass
class TimingBlock:
    """At most a second of a sitting.

    | field | meaning |
    | --- | --- |
    | pace | seconds of its one-row passes, in their order |
    | stolen | share of its time that the hypervisor gave to others |
    """

    pace: list[float] = field(default_factory=list)
    stolen: float = 0.0

    @property
    def spread(self) -> float:
        """Width of the middle half of its one-row passes over their median."""
        low, middle, high = np.quantile(self.pace, (0.25, 0.5, 0.75)) if self.pace else (0, 1, 0)
        return float((high - low) / middle) if middle else 0.0

    @property
    def disturbed(self) -> bool:
        """Whether the block is left out."""
        return self.stolen > STOLEN or self.spread > SPREAD

    @property
    def weight(self) -> float:
        """Weight of the block: its time that was not stolen, over its squared spread."""
        return (1 - self.stolen) / max(self.spread, FLOOR) ** 2


def stolen_seconds(path: Path = Path("/proc/stat")) -> float:
    """Processor seconds stolen from this machine since it started; 0 where that is not known."""
    try:
        ticks = path.read_text(encoding="ascii").split("\n", 1)[0].split()
        return int(ticks[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


class Pace:
    """The timing blocks of a sitting, with their one-row passes; `paced` are settled by it."""

    def __init__(
        self,
        timer: Callable[[], float] = perf_counter,
        stolen: Callable[[], float] = stolen_seconds,
    ):
        self.timer, self.stolen = timer, stolen
        self.blocks: list[TimingBlock] = []
        self.paced: list[Paced] = []
        self.last = 0.0
        self._begun = self._stolen = 0.0
        self._first = 0
        self.changes = 0
        self._seen: tuple[int, np.ndarray, float] = -1, np.zeros(0), 0.0

    def begin(self) -> None:
        """Starts a run's first timing block."""
        self._first = len(self.blocks)
        self._next()

    def _next(self) -> None:
        self.blocks.append(TimingBlock())
        self._begun, self._stolen = self.timer(), self.stolen()

    def drop(self) -> None:
        """Forgets the blocks since the last `begin`, of a run that does not count."""
        del self.blocks[self._first :]
        self.changes += 1

    def pass_one(self, target: Target, token: int) -> tuple[int, float]:
        """(block, seconds) of a one-row pass after the committed rows, which stay as they are.

        A block that has lasted BLOCK_SECONDS ends with it.
        """
        return self.note(one_row(target, token))

    def note(self, seconds: float) -> tuple[int, float]:
        """Notes a one-row pass that took `seconds` and ended now; returns like `pass_one`."""
        block = self.blocks[-1]
        block.pace.append(seconds)
        self.changes += 1
        lasted = self.timer() - self._begun
        if lasted > 0:
            block.stolen = (self.stolen() - self._stolen) / (lasted * (os.cpu_count() or 1))
        number = len(self.blocks) - 1
        if lasted >= BLOCK_SECONDS:
            self._next()
            self.blocks[-1].pace.append(seconds)
        return number, seconds

    def settle(self, target: Target, token: int) -> None:
        """Takes ROUNDS one-row passes, which settle what was timed since the last ones."""
        if not self.paced:
            return
        seconds = float(np.median([one_row(target, token) for _ in range(ROUNDS)]))
        if self.last:
            for timed in self.paced:
                timed.settle(self.last, seconds)
        self.last = seconds

    def __contains__(self, block: int) -> bool:
        """Whether it has a block of that number."""
        return 0 <= block < len(self.blocks)

    @property
    def counted(self) -> list[bool]:
        """Whether each block counts; True for all where none would."""
        counted = [not block.disturbed for block in self.blocks]
        return counted if any(counted) else [True] * len(counted)

    @property
    def weights(self) -> np.ndarray:
        """float64 [blocks]: what each block counts, 0 for those left out."""
        return self._summary()[1]

    @property
    def typical(self) -> float:
        """Median of the one-row passes that count; 0 while none is known."""
        return self._summary()[2]

    def _summary(self) -> tuple[int, np.ndarray, float]:
        """(changes, weights, typical), computed once after each change."""
        if self._seen[0] != self.changes:
            counted = self.counted
            weights = [b.weight if c else 0.0 for b, c in zip(self.blocks, counted)]
            passes = [s for b, c in zip(self.blocks, counted) if c for s in b.pace]
            typical = float(np.median(passes)) if passes else 0.0
            self._seen = self.changes, np.array(weights, np.float64), typical
        return self._seen

    def to_list(self) -> list[list]:
        """Plain rows, for a file."""
        return [[block.stolen, *block.pace] for block in self.blocks]

    def extend(self, rows: Iterable[Sequence[float]]) -> None:
        """Adds what `to_list` gave; ValueError or TypeError for anything else."""
        for stolen, *pace in rows:
            numbers = [float(value) for value in (stolen, *pace)]
            if not np.isfinite(numbers).all():
                raise ValueError("a timing block holds numbers that are not finite")
            self.blocks.append(TimingBlock(numbers[1:], numbers[0]))
        self.changes += 1


def one_row(target: Target, token: int) -> float:
    """Seconds of a one-row pass after the committed rows."""
    clock = PhaseTimer(target.decoder.device)
    clock.begin()
    target.verify([token], [-1])
    clock.lap(VERIFICATION)
    return clock.rows[-1][VERIFICATION]

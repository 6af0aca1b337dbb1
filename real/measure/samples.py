"""Timed rounds of one model, by job."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from real.decode.acceptance_predictor import PREDICTOR_NAMES
from real.decode.phase_timer import DRAFTING, OTHER, POLICY, VERIFICATION
from real.measure.interval import median_interval
from real.measure.job import FEATURES, FIXED, Job
from real.measure.round_times import TimedRound
from simspec.round_cost import next_backlog

WHOLE = (DRAFTING, VERIFICATION, POLICY, OTHER)
PASS = (VERIFICATION, OTHER)
DRAFT = (DRAFTING, POLICY)
MOST = 1e300
"""Most seconds of a phase; a file can hold integers that no float does."""


class MachinePace(Protocol):
    """How fast the machine was (`real.measure.pace.Pace`)."""

    @property
    def limit(self) -> float:
        """The slowest pace that counts."""

    @property
    def typical(self) -> float:
        """The pace that rounds are scaled to."""


class Samples:
    """Rounds in the order in which they ran; drafts are filed under the length they computed.

    Rounds wait in `waiting` for the pace behind them. With `machine`, `seconds` are those
    of rounds that ran while the machine was fast, scaled to its typical pace.
    """

    def __init__(self, machine: "MachinePace | None" = None) -> None:
        self.machine = machine
        self.waiting: list[tuple[Job, int]] = []
        self.rounds: dict[Job, list[TimedRound]] = defaultdict(list)

    def add(self, jobs: Sequence[Job], rounds: Iterable[Any], seconds: Sequence[Sequence[float]]):
        """Files the rounds of one sequence, which did these jobs in that many seconds."""
        backlog = 0
        for i, (job, done, row) in enumerate(zip(jobs, rounds, seconds)):
            timed = TimedRound(i == 0, done.computed, done.drafted, backlog, np.array(row))
            by_length = job.kind in (FIXED, FEATURES, *PREDICTOR_NAMES)
            size = done.computed if by_length else job.size
            self._file(Job(job.kind, size), timed)
            backlog = next_backlog(backlog, done.computed, done.accepted)

    def add_draft(self, job: Job, computed: int, seconds: Sequence[float], first: bool) -> None:
        """Files a draft that was not verified."""
        self._file(job, TimedRound(first, computed, 0, 0, np.array(seconds)))

    def _file(self, job: Job, timed: TimedRound) -> None:
        self.waiting.append((job, len(self.rounds[job])))
        self.rounds[job].append(timed)

    def settle(self, before: float, after: float) -> None:
        """Notes the paces around the rounds that wait, and each one's own between the two."""
        seconds = np.array([self.rounds[job][i].seconds.sum() for job, i in self.waiting])
        total = max(seconds.sum(), np.finfo(float).tiny)
        middle = (np.cumsum(seconds) - seconds / 2) / total
        for (job, i), share in zip(self.waiting, middle):
            pace, slowest = before + (after - before) * float(share), max(before, after)
            self.rounds[job][i] = replace(self.rounds[job][i], pace=pace, slowest=slowest)
        self.waiting.clear()

    def seconds(
        self, job: Job, phases: tuple[int, ...] = WHOLE, backlog: int | None = None
    ) -> list[float]:
        """Seconds of a job's rounds in these phases, with that backlog; a sequence's first round
        counts only where no later round did the job."""
        rounds = self.rounds.get(job, [])
        rounds = [r for r in rounds if not r.first] or rounds
        rounds = [r for r in rounds if backlog is None or r.backlog == backlog]
        typical = 0.0
        if self.machine is not None:
            limit, typical = self.machine.limit, self.machine.typical
            rounds = [r for r in rounds if r.slowest <= limit] or rounds
        return [
            float(sum(r.seconds[phase] for phase in phases))
            * (typical / r.pace if typical and r.pace else 1.0)
            for r in rounds
        ]

    def drafting(self, length: int) -> list[float]:
        """Seconds of drafting that length without a backlog; of all where each had one."""
        job = Job(FIXED, length)
        return self.seconds(job, DRAFT, 0) or self.seconds(job, DRAFT)

    def to_list(self) -> list[list]:
        """Plain rows, for a file."""
        return [
            [
                *(job.kind, job.size, r.first, r.computed, r.drafted, r.backlog),
                *(r.pace, r.slowest),
                *r.seconds.tolist(),
            ]
            for job, rounds in self.rounds.items()
            for r in rounds
        ]

    def extend(self, rows: Iterable[Sequence]) -> None:
        """Adds what `to_list` gave; ValueError or TypeError for anything else."""
        rows = list(rows)
        for row in rows:
            if type(row[0]) is not str or not all(map(_is_number, row[1:])):
                raise ValueError(f"a round is {str(row)[:80]}, expected a job's name and numbers")
        for kind, size, first, computed, drafted, backlog, pace, slowest, *seconds in rows:
            timed = TimedRound(first, computed, drafted, backlog, np.array(seconds), pace, slowest)
            self.rounds[Job(kind, size)].append(timed)


def _is_number(value: object) -> bool:
    """Whether this is a number that a float holds."""
    return isinstance(value, int | float) and abs(value) < MOST


def relative_width(values: Sequence[float], floor: float) -> float:
    """Half-width of the median's interval over max(median, floor); infinite for too few values."""
    if not len(values):
        return float("inf")
    median, half_width = median_interval(values)
    scale = max(median, floor)
    return half_width / scale if scale else (float("inf") if half_width else 0.0)

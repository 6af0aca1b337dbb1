"""Timed rounds of one model, by job."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from real.decode.phase_timer import DRAFTING, OTHER, POLICY, VERIFICATION
from real.measure.interval import median_interval
from real.measure.job import FEATURES, FIXED, Job
from real.measure.round_times import TimedRound
from simspec.round_cost import next_backlog

WHOLE = (DRAFTING, VERIFICATION, POLICY, OTHER)
PASS = (VERIFICATION, OTHER)
DRAFT = (DRAFTING, POLICY)


class Samples:
    """Rounds in the order in which they ran; drafts are filed under the length they computed.

    Rounds wait in `waiting` for the machine's pace behind them (`real.measure.pace`).
    """

    def __init__(self) -> None:
        self.waiting: list[TimedRound] = []
        self.rounds: dict[Job, list[TimedRound]] = defaultdict(list)

    def add(self, jobs: Sequence[Job], rounds: Iterable[Any], seconds: Sequence[Sequence[float]]):
        """Files the rounds of one sequence, which did these jobs in that many seconds."""
        backlog = 0
        for i, (job, done, row) in enumerate(zip(jobs, rounds, seconds)):
            timed = TimedRound(i == 0, done.computed, done.drafted, backlog, np.array(row))
            size = done.computed if job.kind in (FIXED, FEATURES) else job.size
            self.rounds[Job(job.kind, size)].append(timed)
            self.waiting.append(timed)
            backlog = next_backlog(backlog, done.computed, done.accepted)

    def add_draft(self, job: Job, computed: int, seconds: Sequence[float], first: bool) -> None:
        """Files a draft that was not verified."""
        timed = TimedRound(first, computed, 0, 0, np.array(seconds))
        self.rounds[job].append(timed)
        self.waiting.append(timed)

    def settle(self, before: float, after: float) -> None:
        """Multiplies the rounds that wait by factors from `before` to `after`, by their time."""
        seconds = np.array([timed.seconds.sum() for timed in self.waiting])
        total = max(seconds.sum(), np.finfo(float).tiny)
        middle = (np.cumsum(seconds) - seconds / 2) / total
        for timed, share in zip(self.waiting, middle):
            timed.seconds[:] *= before + (after - before) * share
        self.waiting.clear()

    def seconds(
        self, job: Job, phases: tuple[int, ...] = WHOLE, backlog: int | None = None
    ) -> list[float]:
        """Seconds of a job's rounds in these phases, with that backlog; a sequence's first round
        counts only where no later round did the job."""
        rounds = self.rounds.get(job, [])
        rounds = [r for r in rounds if not r.first] or rounds
        return [
            float(sum(r.seconds[phase] for phase in phases))
            for r in rounds
            if backlog is None or r.backlog == backlog
        ]

    def drafting(self, length: int) -> list[float]:
        """Seconds of drafting that length without a backlog; of all where each had one."""
        job = Job(FIXED, length)
        return self.seconds(job, DRAFT, 0) or self.seconds(job, DRAFT)

    def times(self, factor: float) -> "Samples":
        """The same rounds, in so many times as many seconds."""
        scaled = Samples()
        for job, rounds in self.rounds.items():
            scaled.rounds[job] = [replace(r, seconds=r.seconds * factor) for r in rounds]
        return scaled

    def to_list(self) -> list[list]:
        """Plain rows, for a file."""
        return [
            [job.kind, job.size, r.first, r.computed, r.drafted, r.backlog, *r.seconds.tolist()]
            for job, rounds in self.rounds.items()
            for r in rounds
        ]

    def extend(self, rows: Iterable[Sequence]) -> None:
        """Adds what `to_list` gave."""
        for kind, size, first, computed, drafted, backlog, *seconds in rows:
            timed = TimedRound(first, computed, drafted, backlog, np.array(seconds))
            self.rounds[Job(kind, size)].append(timed)


def relative_width(values: Sequence[float], floor: float) -> float:
    """Half-width of the median's interval over max(median, floor); infinite for too few values."""
    if not len(values):
        return float("inf")
    median, half_width = median_interval(values)
    scale = max(median, floor)
    return half_width / scale if scale else (float("inf") if half_width else 0.0)

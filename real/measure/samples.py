"""Timed rounds of one model, by job."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from real.decode.features import PREDICTOR_NAMES
from real.decode.loop import DecodeResult
from real.decode.verify import DRAFTING, OTHER, POLICY, VERIFICATION
from real.measure.estimate import Timed
from real.measure.job import FEATURES, FIXED, PLAIN, Job
from real.measure.pace import Pace
from simspec.cost.rounds import next_backlog


@dataclass(frozen=True)
class TimedRound:
    """One round of the decode loop.

    | field | meaning |
    | --- | --- |
    | first | whether it is the first of its sequence |
    | computed, drafted | draft tokens computed, and submitted |
    | backlog | rows that the drafter's cache lagged by when it started |
    | seconds | float64 `[4]`: drafting, verification, policy, other |
    | pace | median seconds of the one-row target passes around the round; 0: unknown |
    | block | the timing block that it ran in |
    """

    first: bool
    computed: int
    drafted: int
    backlog: int
    seconds: np.ndarray
    pace: float = 0.0
    block: int = 0


@dataclass
class RoundTimes:
    """Rounds of all runs of chain jobs, in the order in which they ran.

    | field | rounds of |
    | --- | --- |
    | plain | plain decoding |
    | features | policies that read features |
    | chains | all other jobs |
    """

    plain: list[TimedRound] = field(default_factory=list)
    features: list[TimedRound] = field(default_factory=list)
    chains: list[TimedRound] = field(default_factory=list)

    def add(self, job: Job, result: DecodeResult) -> None:
        """Collects the rounds of one run of that job."""
        {PLAIN: self.plain, FEATURES: self.features}.get(job.kind, self.chains).extend(
            timed_rounds(result)
        )


def timed_rounds(result: DecodeResult) -> Iterator[TimedRound]:
    """The rounds of one sequence with the backlog before each."""
    backlog = 0
    columns = (getattr(result, name).tolist() for name in ("computed", "drafted", "accepted"))
    for i, (computed, drafted, accepted, seconds) in enumerate(zip(*columns, result.seconds)):
        yield TimedRound(i == 0, computed, drafted, backlog, seconds)
        backlog = next_backlog(backlog, computed, accepted)


WHOLE = (DRAFTING, VERIFICATION, POLICY, OTHER)
PASS = (VERIFICATION, OTHER)
DRAFT = (DRAFTING, POLICY)
NEAR = 4
"""One-row passes on each side of a round that say its pace: a few tenths of a second."""
MOST = 1e300
"""Most seconds of a phase; a file can hold integers that no float does."""


class Samples:
    """Rounds in the order in which they ran; drafts are filed under the length they computed.

    With `pace`, `seconds` are at the machine's typical pace, and blocks weigh as it says. `draws`,
    int [blocks], is how often a bootstrap drew each block; None: once.
    """

    def __init__(self, pace: Pace | None = None) -> None:
        self.pace = pace
        self.draws: np.ndarray | None = None
        self.rounds: dict[Job, list[TimedRound]] = defaultdict(list)
        self._taken: dict[tuple, tuple[tuple[int, int], Timed]] = {}

    def add(
        self,
        jobs: Sequence[Job],
        rounds: Iterable[Any],
        seconds: Sequence[Sequence[float]],
        passes: Sequence[tuple[int, float]] = (),
    ) -> None:
        """Files the rounds of one sequence, which did these jobs in that many seconds.

        `passes`: (block, seconds) of the one-row passes before the first and after every round.
        """
        backlog = 0
        for i, (job, done, row) in enumerate(zip(jobs, rounds, seconds)):
            by_length = job.kind in (FIXED, FEATURES, *PREDICTOR_NAMES)
            size = done.computed if by_length else job.size
            timed = TimedRound(
                i == 0, done.computed, done.drafted, backlog, np.array(row), *_beside(passes, i)
            )
            self.rounds[Job(job.kind, size)].append(timed)
            backlog = next_backlog(backlog, done.computed, done.accepted)

    def add_draft(
        self,
        job: Job,
        computed: int,
        seconds: Sequence[float],
        first: bool,
        passes: Sequence[tuple[int, float]] = (),
    ) -> None:
        """Files a draft that was not verified, between two one-row passes."""
        timed = TimedRound(first, computed, 0, 0, np.array(seconds), *_beside(passes, 0))
        self.rounds[job].append(timed)

    def seconds(
        self, job: Job, phases: tuple[int, ...] = WHOLE, backlog: int | None = None
    ) -> Timed:
        """Seconds of a job's rounds in these phases, with that backlog; a sequence's first round
        counts only where no later round did the job."""
        rounds = self.rounds.get(job, [])
        state = len(rounds), 0 if self.pace is None else self.pace.changes
        held = self._taken.get((job, phases, backlog))
        if held is None or held[0] != state:  # a bootstrap asks for the same rounds many times
            held = state, self._seconds(rounds, phases, backlog)
            self._taken[job, phases, backlog] = held
        taken = held[1]
        if self.draws is None:
            return taken
        return taken._replace(weight=taken.weight * self.draws[taken.block])

    def _seconds(
        self, rounds: Sequence[TimedRound], phases: tuple[int, ...], backlog: int | None
    ) -> Timed:
        rounds = [r for r in rounds if not r.first] or rounds
        rounds = [r for r in rounds if backlog is None or r.backlog == backlog]
        taken = Timed.of([float(sum(r.seconds[phase] for phase in phases)) for r in rounds])
        if self.pace is None or not rounds:
            return taken
        typical = self.pace.typical
        scale = np.array([typical / r.pace if typical and r.pace else 1.0 for r in rounds])
        block = np.array([r.block for r in rounds])
        return Timed(taken.seconds * scale, block, self.pace.weights[block])

    def drafting(self, length: int) -> Timed:
        """Seconds of drafting that length without a backlog; of all where each had one."""
        job = Job(FIXED, length)
        without = self.seconds(job, DRAFT, 0)
        return without if len(without.seconds) else self.seconds(job, DRAFT)

    def to_list(self) -> list[list]:
        """Plain rows, for a file."""
        return [
            [
                *(job.kind, job.size, r.first, r.computed, r.drafted, r.backlog),
                *(r.pace, r.block),
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
        for kind, size, first, computed, drafted, backlog, pace, block, *seconds in rows:
            timed = TimedRound(first, computed, drafted, backlog, np.array(seconds), pace, block)
            if self.pace is not None and not (type(block) is int and block in self.pace):
                raise ValueError(f"a round ran in block {block!r}, which the file does not hold")
            self.rounds[Job(kind, size)].append(timed)


def _is_number(value: object) -> bool:
    """Whether this is a number that a float holds."""
    return isinstance(value, int | float) and abs(value) < MOST


def _beside(passes: Sequence[tuple[int, float]], i: int) -> tuple[float, int]:
    """(the pace at round i, its block); (0, 0) without passes.

    Pass i ran before the round. The pace is the median of the NEAR nearest passes of the block on
    both sides: one pass alone would add its own noise to the round's.
    """
    if not passes:
        return 0.0, 0
    block = passes[i + 1][0]
    near = passes[max(i + 1 - NEAR, 0) : i + 1 + NEAR]
    return float(np.median([seconds for other, seconds in near if other == block])), block

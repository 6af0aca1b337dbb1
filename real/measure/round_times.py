"""Seconds of timed rounds, collected by job; summaries take medians or means of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from real.decode.result import DecodeResult
from real.measure.job import FEATURES, PLAIN, Job
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
    | pace | median seconds of the one-row passes of the target beside it; 0: unknown |
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

"""Timing jobs, the machine's pace, and the rounds that were timed.

A shared machine changes its speed within seconds. So a round is timed in units of the target's
one-row passes around it, and timing blocks of at most a second are what an interval counts as
independent.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta
from torch import Tensor

from real.decode.features import PREDICTOR_NAMES
from real.decode.loop import Round
from real.decode.plans import Plan, RoundStart, SequenceStart
from real.decode.verify import DRAFTING, OTHER, POLICY, VERIFICATION, PhaseTimer, VerifyResult
from real.draft import Draft
from real.model.target import Target, TargetOutput
from simspec import Policy, policies
from simspec.cost.rounds import next_backlog
from simspec.policy.policy import observe_nothing

PLAIN, FIXED, BACKLOG, FEATURES = "plain", "fixed", "backlog", "features"
ALONE, NODES, WIDTH = "alone", "nodes", "width"

MAX_BACKLOG = 4
"""Catching up is measured up to this many rows."""
FEATURE_TOKENS = 4
"""Draft length at which reading features is measured."""
LADDER = 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 255
"""Draft lengths that are timed; drafting those between is filled linearly."""
DENSE, BLOCK = 16, 16
"""Verification is timed at all lengths up to DENSE, then around multiples of BLOCK rows, where
matrix products on a CPU jump, and between them."""
PASS_WIDTHS = 1, 4, 8
"""Rows of a drafter's pass over a tree, to price one more row."""


@dataclass(frozen=True)
class Job:
    """One thing to time.

    | kind | size | what |
    | --- | --- | --- |
    | plain | 0, 1 | plain decoding without a drafter; 1: the duplicate in separate sequences |
    | alone | tokens | verification of a chain that no drafter computed |
    | nodes | tokens | verification of a tree; no drafter computed it, unless passes resume |
    | fixed | length | drafts of that length |
    | backlog | rows | drafts of one token after that many rounds without a draft |
    | features, theta, theta_low_rank | length | drafts whose confidence or prediction is read |
    | width | rows of a pass | drafting a two-level tree, without verification |
    """

    kind: str
    size: int = 0

    @property
    def policy(self) -> Policy:
        """The chain policy that makes the loop do this job of one round."""
        if self.kind == FEATURES:
            return policies.BUILTIN["confidence"](0.0, K=self.size)
        if self.kind in PREDICTOR_NAMES:
            name, K, params = f"reads:{self.kind}", self.size, (float(self.size),)
            return Policy(name, _draft_all, observe_nothing, params, K=K, reads=(self.kind,))
        return policies.BUILTIN["fixed"](0 if self.kind == PLAIN else self.size)

    def rounds(self) -> list["Job"]:
        """The rounds that make up this job: catching up needs rounds without a draft before."""
        if self.kind == BACKLOG:
            return [*[Job(FIXED, 0)] * self.size, Job(FIXED, 1)]
        return [self]


def measured_lengths(most: int, least: int = 1) -> list[int]:
    """Lengths of LADDER from `least` to `most`, and both ends; none where most < least."""
    inside = {length for length in LADDER if least <= length <= most}
    return sorted(inside | {least, most}) if least <= most else []


def verified_lengths(most: int, least: int = 1) -> list[int]:
    """Submitted tokens at which verification is timed, `least` and `most` among them; a pass of n
    tokens has n + 1 rows."""
    around = (
        BLOCK * k + step for k in range(most // BLOCK + 2) for step in (-2, -1, 0, BLOCK // 2)
    )
    inside = {n for n in (*range(1, DENSE + 1), *around) if least <= n <= most}
    return sorted(inside | {least, most}) if least <= most else []


def draft_jobs(K: int, has_logits: bool, predictors: Iterable[str] = ()) -> list[Job]:
    """Jobs of one round each, or of one catching up, that price drafts of up to K >= 1 tokens.

    Drafters without logits expose no features. Predictors of all forms are the same two dot
    products, so that the first is timed.
    """
    jobs = [Job(FIXED, length) for length in measured_lengths(K)]
    jobs += [Job(BACKLOG, rows) for rows in range(1, MAX_BACKLOG + 1)]
    read = [FEATURES] * has_logits + list(predictors)[:1]
    return jobs + [Job(kind, min(FEATURE_TOKENS, K)) for kind in read]


def alone_jobs(K: int, nodes: int) -> list[Job]:
    """Jobs that price the target's verification: chains of up to K tokens, then larger trees."""
    return [Job(ALONE, length) for length in verified_lengths(K)] + tree_jobs(K, nodes)


def tree_jobs(K: int, nodes: int) -> list[Job]:
    """Jobs that price the verification of trees of more than K nodes."""
    return [Job(NODES, size) for size in verified_lengths(nodes, K + 1)]


def _draft_all(params: Any, state: Any, slot: int, features: Any, u: float) -> tuple[bool, bool]:
    return slot < params[0], True


class EndOfJobs(Exception):
    """Raised by `JobPlan.end_round` after the last job; it ends the sequence."""


class JobPlan:
    """Does `units`, jobs that belong together, in order: each round by its job's plan.

    It ends after `room` new tokens; `left` then has the other units. Up to `retries` units that
    started after a backlog are done once more at the end. `pass_one` times a one-row pass, (block,
    seconds), before the first and after every round. `jobs`, `rounds`, `clock.rows` and `passes`
    say what was done round by round, and in how many seconds.
    """

    def __init__(
        self,
        plans: Mapping[Job, Plan],
        units: Sequence[Sequence[Job]],
        room: int,
        retries: int = 0,
        pass_one: Callable[[], tuple[int, float]] | None = None,
    ):
        self.plans, self.left, self.room, self.retries = plans, list(units), room, retries
        self.pass_one = pass_one
        self.passes: list[tuple[int, float]] = []
        self.K = max(plans[job].K for unit in units for job in unit)
        self.jobs: list[Job] = []
        self.rounds: list[Round] = []
        self.place = self.backlog = self.backlog_before = 0

    @property
    def job(self) -> Job:
        """The job of the current round."""
        return self.left[0][self.place]

    @property
    def reader(self) -> Any:
        return self

    def begin(self, start: SequenceStart) -> None:
        """Begins the plan of every job."""
        for job in dict.fromkeys(job for unit in self.left for job in unit):
            self.plans[job].begin(start)
        self._time_one()

    def _time_one(self) -> None:
        if self.pass_one is not None:
            self.passes.append(self.pass_one())

    def draft(self, start: RoundStart) -> Draft:
        self.clock = start.clock
        plan = self.plans[self.job]
        return plan.draft(replace(start, cap=min(start.cap, plan.K)))

    def end(self, draft: Draft, verified: VerifyResult, output: TargetOutput) -> float:
        return self.plans[self.job].end(draft, verified, output)

    def fetch(
        self, best: Tensor, logits: Tensor, hidden: Tensor | None, slot: int, clock: PhaseTimer
    ) -> int:
        """The token `best [1]`, with the features that the current job reads."""
        reader = self.plans[self.job].reader
        return int(best) if reader is None else reader.fetch(best, logits, hidden, slot, clock)

    def end_round(self, done: Round) -> None:
        """Notes a round; EndOfJobs after the last unit, and where `room` tokens are committed."""
        self.jobs.append(self.job)
        self.rounds.append(done)
        self._time_one()
        self.backlog = next_backlog(self.backlog, done.computed, done.accepted)
        self.place += 1
        if self.place == len(self.left[0]):
            unit = self.left.pop(0)
            if self.backlog_before and self.retries:
                self.left.append(unit)
                self.retries -= 1
            self.place, self.backlog_before = 0, self.backlog
        if not self.left or done.position + done.accepted >= self.room:
            raise EndOfJobs


BLOCK_SECONDS = 1.0
STOLEN = 0.05
"""A block is left out where the hypervisor took more than this share of its time,"""
SPREAD = 0.25
"""or where the middle half of its one-row passes is wider than this share of their median."""
FLOOR = 0.05
"""Spread below which blocks weigh alike: few passes say no more about a block."""


@dataclass
class TimingBlock:
    """At most a second of a sitting: seconds of its one-row passes, and the share of its time that
    the hypervisor gave to others."""

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
    """The timing blocks of a sitting, with their one-row passes."""

    def __init__(
        self,
        timer: Callable[[], float] = perf_counter,
        stolen: Callable[[], float] = stolen_seconds,
    ):
        self.timer, self.stolen = timer, stolen
        self.blocks: list[TimingBlock] = []
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
        """Adds what `to_list` gave."""
        self.blocks += [TimingBlock(pace, stolen) for stolen, *pace in rows]
        self.changes += 1


def one_row(target: Target, token: int) -> float:
    """Seconds of a one-row pass after the committed rows."""
    clock = PhaseTimer(target.decoder.device)
    clock.begin()
    target.verify([token], [-1])
    clock.lap(VERIFICATION)
    return clock.rows[-1][VERIFICATION]


class Timed(NamedTuple):
    """Seconds of rounds at the machine's typical pace, with the block and weight of each."""

    seconds: np.ndarray
    block: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Timed":
        """Seconds of equal weight, each in a separate block."""
        values = np.asarray(seconds, np.float64)
        return cls(values, np.arange(len(values)), np.ones(len(values)))

    def __add__(self, other: "Timed") -> "Timed":  # type: ignore[override]
        return Timed(*(np.concatenate(pair) for pair in zip(self, other)))


@dataclass(frozen=True)
class TimedRound:
    """One round of the decode loop: its seconds, float64 [4], of drafting, verification, policy and
    other; `pace`, the median of the one-row passes around it (0: unknown); its timing block."""

    first: bool
    computed: int
    drafted: int
    backlog: int
    seconds: np.ndarray
    pace: float = 0.0
    block: int = 0


WHOLE = (DRAFTING, VERIFICATION, POLICY, OTHER)
PASS = (VERIFICATION, OTHER)
DRAFT = (DRAFTING, POLICY)
NEAR = 4
"""One-row passes on each side of a round that say its pace: a few tenths of a second."""


Number = Annotated[float, Meta(le=1e300)]
SavedRound = tuple[str, int, bool, int, int, int, Number, int, Number, Number, Number, Number]
"""A round of a job as files hold it: its kind and size, and the fields of a TimedRound."""


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
        passes: Sequence[tuple[int, float]],
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

    def to_list(self) -> list[SavedRound]:
        """Plain rows, for a file."""
        return [
            (job.kind, job.size, r.first, r.computed, r.drafted, r.backlog, r.pace, r.block,
             *r.seconds.tolist())
            for job, rounds in self.rounds.items()
            for r in rounds
        ]  # fmt: skip

    def extend(self, rows: Iterable[SavedRound]) -> None:
        """Adds what `to_list` gave; ValueError for a round of a timing block that is not there."""
        for kind, size, first, computed, drafted, backlog, pace, block, *seconds in rows:
            timed = TimedRound(first, computed, drafted, backlog, np.array(seconds), pace, block)
            if self.pace is not None and not 0 <= block < len(self.pace.blocks):
                raise ValueError(f"a round ran in block {block}, which the file does not hold")
            self.rounds[Job(kind, size)].append(timed)


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

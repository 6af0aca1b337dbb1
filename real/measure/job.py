"""Timing jobs: what runs repeatedly to price one part of a round."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from real.decode.features import PREDICTOR_NAMES
from real.decode.loop import Round
from real.decode.plans import Plan, RoundStart, SequenceStart
from real.decode.verify import PhaseTimer, VerifyResult
from real.draft import Draft, Drafter, Silent
from real.model.target import TargetOutput
from simspec import Policy, policies
from simspec.cost.rounds import next_backlog
from simspec.policy.policy import observe_nothing

PLAIN, FIXED, BACKLOG, FEATURES = "plain", "fixed", "backlog", "features"
ALONE, NODES, WIDTH = "alone", "nodes", "width"
VERIFY, STEPS = "verify", "steps"

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

    | kind | size | in the decode loop |
    | --- | --- | --- |
    | plain | 0, 1 | plain decoding without a drafter; 1: the duplicate in separate sequences |
    | alone | tokens | verification of a chain that no drafter computed |
    | nodes | tokens | verification of a tree; no drafter computed it, unless passes resume |
    | fixed | draft length | drafts of that length |
    | backlog | rows | drafts of one token after that many rounds without a draft |
    | features | draft length | drafts whose confidence the policy reads |
    | theta, theta_low_rank | draft length | drafts whose prediction the policy reads, and no more |
    | width | rows of a pass | drafting a two-level tree, without verification |

    | kind | size | as a bare batched pass (`real.measure.cost_table`) |
    | --- | --- | --- |
    | verify | draft length | the target's pass |
    | steps | 0 | K draft steps |
    | backlog | rows | the first draft step after that backlog |
    """

    kind: str
    size: int = 0

    @property
    def policy(self) -> Policy:
        """The chain policy that makes the loop do this job, round by round."""
        if self.kind == BACKLOG:
            return draft_after(self.size)
        if self.kind == FEATURES:
            return policies.BUILTIN["confidence"](0.0, K=self.size)
        if self.kind in PREDICTOR_NAMES:
            return draft_predicted(self.size, self.kind)
        return policies.BUILTIN["fixed"](0 if self.kind == PLAIN else self.size)

    def drafter(self, drafter: Drafter) -> Drafter:
        """The drafter that the loop runs for this job."""
        return Silent() if self.kind == PLAIN else drafter

    def rounds(self) -> list["Job"]:
        """The rounds that make up this job: catching up needs rounds without a draft before."""
        if self.kind == BACKLOG:
            return [*[Job(FIXED, 0)] * self.size, Job(FIXED, 1)]
        return [self]


def measured_lengths(most: int, least: int = 1) -> list[int]:
    """Lengths of LADDER from `least` to `most`, and both ends; none where most < least."""
    inside = {length for length in LADDER if least <= length <= most}
    return sorted(inside | {least, most}) if least <= most else []


def chain_jobs(lengths: Iterable[int], has_logits: bool) -> list[Job]:
    """Jobs that price chains: plain decoding, every draft length, catching up, reading features.

    Drafters without logits expose no features; a longest length of 0 leaves nothing to catch up.
    """
    lengths = list(lengths)
    jobs = [Job(PLAIN), *(Job(FIXED, length) for length in lengths)]
    if K := max(lengths):
        jobs += [Job(BACKLOG, rows) for rows in range(1, MAX_BACKLOG + 1)]
        if has_logits:
            jobs.append(Job(FEATURES, min(FEATURE_TOKENS, K)))
    return jobs


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

    Predictors of all forms are the same two dot products, so that the first is timed.
    """
    jobs = [job for job in chain_jobs(measured_lengths(K), has_logits) if job.kind != PLAIN]
    return jobs + [Job(name, min(FEATURE_TOKENS, K)) for name in list(predictors)[:1]]


def alone_jobs(K: int, nodes: int) -> list[Job]:
    """Jobs that price the target's verification: chains of up to K tokens, then larger trees."""
    return [Job(ALONE, length) for length in verified_lengths(K)] + tree_jobs(K, nodes)


def tree_jobs(K: int, nodes: int) -> list[Job]:
    """Jobs that price the verification of trees of more than K nodes."""
    return [Job(NODES, size) for size in verified_lengths(nodes, K + 1)]


def draft_after(rounds: int) -> Policy:
    """Drafts one token after every `rounds` rounds without a draft: its first step catches up."""
    return Policy(f"after:{rounds}", _draft_once, _count, params=(float(rounds),), state0=(0.0,))


def draft_predicted(length: int, name: str) -> Policy:
    """Drafts that many tokens and reads a predictor's value of each."""
    return Policy(
        f"reads:{name}", _draft_all, observe_nothing, (float(length),), K=length, reads=(name,)
    )


def _draft_all(params: Any, state: Any, slot: int, features: Any, u: float) -> tuple[bool, bool]:
    return slot < params[0], True


def _draft_once(params: Any, state: Any, slot: int, features: Any, u: float) -> tuple[bool, bool]:
    return slot < 1 and state[0] >= params[0], True


def _count(
    params: Any, state: Any, computed: int, drafted: int, accepted: int, features: Any, cost: Any
) -> None:
    state[0] = 0.0 if computed > 0 else state[0] + 1.0


class EndOfJobs(Exception):
    """Raised by `JobPlan.end_round` after the last job; it ends the sequence."""


class JobPlan:
    """Does `units` of jobs in order, each round by its job's plan.

    | argument | meaning |
    | --- | --- |
    | plans | job -> its plan |
    | units | jobs that belong together, one a round |
    | room | new tokens after which the sequence ends; `left` then has the other units |
    | retries | units that started after a backlog, and are done once more at the end |
    | pass_one | times a one-row pass, (block, seconds): before the first and after every round |

    It is its own reader: reading features is the current job's matter. `jobs`, `rounds`,
    `clock.rows` and `passes` say what was done round by round, and in how many seconds.
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

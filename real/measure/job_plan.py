"""A plan whose rounds do one timing job after another, in one sequence."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from real.decode.phase_timer import PhaseTimer
from real.decode.plan import Plan
from real.decode.result import Round
from real.decode.verify import VerifyResult
from real.draft import Draft, Drafter
from real.measure.job import Job
from real.model.target import TargetOutput
from real.sampling import AddressedDraws, Rule
from simspec.cost.rounds import next_backlog


class EndOfJobs(Exception):
    """Raised by `JobPlan.end_round` behind the last job; it ends the sequence."""


class JobPlan:
    """Does `units` of jobs in order, each round by its job's plan.

    | argument | meaning |
    | --- | --- |
    | plans | job -> its plan |
    | units | jobs that belong together, one a round |
    | room | new tokens after which the sequence ends; `left` then has the other units |
    | retries | units that started behind a backlog, and are done once more at the end |
    | pass_one | times a one-row pass, (block, seconds): before the first and behind every round |

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

    def begin(
        self,
        drafter: Drafter,
        rule: Rule,
        sequence: int,
        prefill: TargetOutput,
        draws: AddressedDraws,
    ) -> None:
        """Begins the plan of every job."""
        for job in dict.fromkeys(job for unit in self.left for job in unit):
            self.plans[job].begin(drafter, rule, sequence, prefill, draws)
        self._time_one()

    def _time_one(self) -> None:
        if self.pass_one is not None:
            self.passes.append(self.pass_one())

    def draft(
        self,
        last: int,
        position: int,
        round: int,
        cap: int,
        end_tokens: tuple[int, ...],
        clock: PhaseTimer,
    ) -> Draft:
        self.clock = clock
        plan = self.plans[self.job]
        return plan.draft(last, position, round, min(cap, plan.K), end_tokens, clock)

    def end(self, draft: Draft, verified: VerifyResult, output: TargetOutput) -> float:
        return self.plans[self.job].end(draft, verified, output)

    def fetch(
        self, best: Tensor, logits: Tensor, hidden: Tensor | None, slot: int, clock: PhaseTimer
    ) -> int:
        """The token `best [1]`, with the features that the current job reads."""
        reader = self.plans[self.job].reader
        return int(best) if reader is None else reader.fetch(best, logits, hidden, slot, clock)

    def end_round(self, done: Round) -> None:
        """Notes a round; EndOfJobs behind the last unit, and where `room` tokens are committed."""
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

"""Blocks of a measurement: jobs in random order, in the decode loop."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import numpy as np

from real.decode.features import PREDICTOR_NAMES
from real.decode.loop import decode, start
from real.decode.plans import Plan, RoundStart, SequenceStart, StaticTree, chain_plan
from real.decode.verify import OTHER, POLICY, PhaseTimer
from real.draft import Draft, Drafter
from real.measure import ROOM, max_new_tokens
from real.measure.estimate import estimate, relative_width
from real.measure.timing import (
    ALONE,
    BACKLOG,
    DRAFT,
    FEATURES,
    FIXED,
    NODES,
    PASS,
    PASS_WIDTHS,
    PLAIN,
    WHOLE,
    WIDTH,
    EndOfJobs,
    Job,
    JobPlan,
    Samples,
    Timed,
)
from real.model.passes import depths
from real.model.target import Target
from real.sampling import AddressedDraws, Rule
from simspec import CostModel
from simspec.tree.tree import Tree, tree_of_widths

_TOKENS = 1 << 16
"""Random tokens are drawn once, so that none is drawn while a round is timed."""


class Undrafted:
    """A plan that submits as many random tokens as `parent` has rows after the first.

    A row follows `parent[row]`; -1 is row 0's. A chain has parent [-1, 0, 1, ..].
    """

    reader = None

    def __init__(self, parent: list[int], vocab: int, seed: int = 0):
        self.parent, self.next = parent, 0
        self.K = max(depths(parent))
        self.token = np.random.default_rng(seed).integers(0, vocab, _TOKENS).tolist()

    def begin(self, start: SequenceStart) -> None: ...

    def draft(self, start: RoundStart) -> Draft:
        parent = self.parent if start.cap >= self.K else [-1]
        self.next = (self.next + len(parent)) % (_TOKENS - len(self.parent))
        token = self.token[self.next : self.next + len(parent) - 1]
        return Draft([start.last, *token], parent, 0, 0)

    def end(self, draft, verified, output) -> float:
        return float("inf")


def binary_tree(nodes: int) -> Tree:
    """Two children of every node, level by level, up to `nodes` nodes."""
    return Tree(tuple(node // 2 for node in range(nodes)), tuple(node % 2 for node in range(nodes)))


SMALL = 0.1
"""A cell below this share of a plain step is as precise as a cell of that share."""


class Block(Protocol):
    """Unit of work that a measurement repeats."""

    def run(self, rng: np.random.Generator, rounds: int, counted: bool, precision: float) -> None:
        """Does every job `rounds` times, or those alone whose interval is wider than `precision`.

        Only counted rounds are kept. A precision of 0 means every job.
        """

    def widths(self) -> Mapping[Job, float]:
        """{job: half-width of its interval over the estimate}."""


def resumes(drafter: Drafter) -> bool:
    """Whether verification skips layers that the drafter has run."""
    return type(drafter).resume is not Drafter.resume


class LoopBlock:
    """Jobs of one drafter, or of none, in the decode loop after one prompt.

    Each job is done `rounds` times a run, in random order; counted rounds go to `samples`. `plain`
    are samples of plain decoding, which say what a small cell is; default: `samples`. A sequence's
    first round is one more, since it follows a prefill. A drafter without logits has a sequence for
    every job: it finds much after its prompt and less after its own output. The target passes the
    prompt once a run.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        rule: Rule,
        prompt: list[int],
        jobs: Sequence[Job],
        samples: Samples,
        plain: Samples | None = None,
    ):
        self.target, self.drafter, self.rule, self.prompt = target, drafter, rule, prompt
        self.jobs, self.samples, self.plain = list(jobs), samples, plain or samples
        self.sequences = 0
        self.resumes = resumes(drafter)
        self.one_by_one = not drafter.has_logits
        self.first = [job for job in self.jobs if job.kind != BACKLOG]
        vocab = target.decoder.config.vocab
        by_length = FIXED, FEATURES, *PREDICTOR_NAMES
        K = max((job.size for job in jobs if job.kind in by_length), default=1)
        cost = CostModel.from_ratio(0.1, K)
        self.plans: dict[Job, Plan] = {}
        for job in (one for whole in self.jobs for one in whole.rounds()):
            if job.kind == ALONE:
                self.plans[job] = Undrafted(list(range(-1, job.size)), vocab)
            elif job.kind == NODES:
                tree = binary_tree(job.size)
                self.plans[job] = (
                    StaticTree(tree) if self.resumes else Undrafted([-1, *tree.parent], vocab)
                )
            elif job not in self.plans:
                self.plans[job] = chain_plan(job.policy, K, 0, cost)

    def run(self, rng: np.random.Generator, rounds: int, counted: bool, precision: float) -> None:
        widths = self.widths() if precision else {}
        jobs = [job for job in self.jobs if not precision or widths[job] > precision]
        units = [jobs[i].rounds() for _ in range(rounds) for i in rng.permutation(len(jobs))]
        with self.target.repeating_prompt():
            if self.one_by_one:
                for unit in units:
                    self._sequence([unit], 0, counted)
                return
            while units:
                first = self.first[self.sequences % len(self.first)]
                left = self._sequence([[first], *units], len(units), counted)
                units = left[: len(units) - 1] if len(left) >= len(units) else left

    def _sequence(
        self, units: Sequence[Sequence[Job]], retries: int, counted: bool
    ) -> list[Sequence[Job]]:
        """One sequence that does these units while there is room; returns those that are left."""
        pace = self.samples.pace
        pass_one = None
        if pace is not None:
            pace.begin()
            pass_one = partial(pace.pass_one, self.target, self.prompt[-1])
        plan = JobPlan(self.plans, units, ROOM, retries, pass_one)
        number, self.sequences = self.sequences, self.sequences + 1
        with suppress(EndOfJobs):
            decode(
                self.target,
                self.drafter,
                plan,
                self.rule,
                self.prompt,
                max_new_tokens(plan.K),
                sequence=number,
                on_round=plan.end_round,
            )
        if counted:
            self.samples.add(plan.jobs, plan.rounds, plan.clock.rows, plan.passes)
        elif pace is not None:
            pace.drop()
        return plan.left

    def widths(self) -> dict[Job, float]:
        plain = self.plain.seconds(Job(PLAIN))
        floor = SMALL * estimate(plain).seconds if len(plain.seconds) else 0.0
        return {
            job: max(relative_width(values, floor) for values in self._cells(job))
            for job in self.jobs
        }

    def _cells(self, job: Job) -> list[Timed]:
        """The seconds whose medians price this job."""
        if job.kind == FIXED:
            passes = [self.samples.seconds(job, PASS)] if self.resumes else []
            return [self.samples.drafting(job.size), *passes]
        if job.kind == BACKLOG:
            return [self.samples.seconds(Job(FIXED, 1), DRAFT, job.size)]
        phases = {PLAIN: WHOLE, FEATURES: (POLICY,)} | dict.fromkeys(
            PREDICTOR_NAMES, (POLICY, OTHER)
        )
        return [self.samples.seconds(job, phases.get(job.kind, PASS))]


class TreeWidthBlock:
    """Drafting of two-level trees, without verification: what one more row of a pass costs."""

    def __init__(
        self, target: Target, drafter: Drafter, rule: Rule, prompt: list[int], samples: Samples
    ):
        self.target, self.drafter, self.rule, self.prompt = target, drafter, rule, prompt
        self.samples, self.runs = samples, 0
        widths = [width for width in PASS_WIDTHS if width <= target.decoder.config.vocab]
        self.trees = {Job(WIDTH, width): StaticTree(tree_of_widths((width, 1))) for width in widths}

    def run(self, rng: np.random.Generator, rounds: int, counted: bool, precision: float) -> None:
        jobs = list(self.trees)
        for i in rng.permutation(len(jobs)):
            self._draft(jobs[i], rounds, counted)

    def _draft(self, job: Job, rounds: int, counted: bool) -> None:
        plan, prompt, clock = self.trees[job], self.prompt, PhaseTimer(self.target.decoder.device)
        prefill = start(self.target, self.drafter, prompt)
        pace, passes = self.samples.pace, []
        if pace is not None:
            pace.begin()
            passes.append(pace.pass_one(self.target, prompt[-1]))
        draws = AddressedDraws(self.rule.seed, self.runs)
        plan.begin(SequenceStart(self.drafter, self.rule, self.runs, prefill, draws))
        self.runs += 1
        for i in range(rounds + 1):
            clock.begin()
            draft = plan.draft(RoundStart(prompt[-1], i, i, plan.K, (), clock))
            self.drafter.rollback(0)
            if pace is not None:
                passes.append(pace.pass_one(self.target, prompt[-1]))
            if counted:
                rows, beside = clock.rows[-1], passes[-2:]
                self.samples.add_draft(job, draft.computed, rows, i == 0, beside)
        if pace is not None and not counted:
            pace.drop()

    def widths(self) -> dict[Job, float]:
        return {job: relative_width(self.samples.seconds(job, DRAFT), 0.0) for job in self.trees}

"""Timing jobs run in the decode loop, one sequence at a time."""

from real.decode.along import start
from real.decode.loop import decode
from real.decode.phase_timer import DRAFTING, OTHER, VERIFICATION, PhaseTimer
from real.decode.plan import Plan, chain_plan
from real.decode.static_tree import StaticTree
from real.draft import Draft, Drafter
from real.measure.job import FIXED, NODES, WIDTH, Job, chain_jobs
from real.measure.medians import median_cost
from real.measure.round_times import RoundTimes
from real.measure.settings import MeasureSettings
from real.model.target import Target
from real.provenance import device_name
from real.sampling import AddressedDraws, Rule
from simspec import CostModel
from simspec.tree_shapes import tree_of_widths

PASS_WIDTHS = 1, 4, 8
"""Rows of a drafter's pass over a tree, to price one more row."""


def max_new_tokens(K: int, rounds: int = MeasureSettings.rounds) -> int:
    """Tokens that a timed sequence may add to its context: the room that static caches need."""
    return 2 * rounds + max(2 * K, 16)


class UndraftedTree:
    """A plan that submits a binary tree of `nodes` copies of the last token."""

    reader = None

    def __init__(self, nodes: int):
        self.parent = [-1, *((row - 1) // 2 for row in range(1, nodes + 1))]
        self.K = (nodes + 1).bit_length() - 1

    def begin(self, drafter, rule, sequence, prefill, draws) -> None: ...

    def draft(
        self, last: int, position: int, round: int, cap: int, end_tokens, clock: PhaseTimer
    ) -> Draft:
        parent = self.parent if cap >= self.K else [-1]
        return Draft([last] * len(parent), parent, 0, 0)

    def end(self, draft, verified, output) -> float:
        return float("inf")


class LoopTiming:
    """Runs timing jobs in the decode loop behind one prompt, and collects their seconds."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        rule: Rule,
        K: int,
        prompt: list[int],
        settings: MeasureSettings,
    ):
        self.target, self.drafter, self.rule, self.K = target, drafter, rule, K
        self.prompt, self.rounds = prompt, settings.rounds
        self.policy_cost = CostModel.from_ratio(0.1, K)
        self.policies = {job: job.policy for job in chain_jobs(range(K + 1), drafter.has_logits)}
        self.trees: dict[Job, Plan] = {
            Job(NODES, n): UndraftedTree(n) for n in range(K + 1, settings.tree_nodes + 1)
        }
        if settings.tree_nodes and drafter.grows and drafter.max_draft_length != 1 and K > 1:
            vocab = target.decoder.config.vocab
            self.trees |= {
                Job(WIDTH, width): StaticTree(tree_of_widths((width, 1)))
                for width in PASS_WIDTHS
                if width <= vocab
            }
        self.jobs: list[Job] = [*self.policies, *self.trees]
        self.times = RoundTimes()
        self.tree_times: dict[Job, list[float]] = {job: [] for job in self.trees}
        self.runs = 0

    def run(self, job: Job, counted: bool) -> None:
        """Runs the job once on a new sequence; `counted` says whether its seconds are collected."""
        if job.kind == WIDTH:
            seconds = self._draft_trees(job)
        elif job.kind == NODES:
            result = self._decode(job, self.trees[job], 16)
            whole = result.drafted[1:] == result.drafted.max()
            seconds = result.seconds[1:][whole][:, (VERIFICATION, OTHER)].sum(1).tolist()
        else:
            policy = self.policies[job]
            plan = chain_plan(policy, self.K, 0, self.policy_cost)
            result = self._decode(job, plan, 2 * job.size if job.kind == FIXED else 0)
            if counted:
                self.times.add(job, result)
            return
        if counted:
            self.tree_times[job] += seconds

    def _decode(self, job: Job, plan, extra: int):
        """One sequence of up to `max_new_tokens`, at an address of its own."""
        self.runs += 1
        return decode(
            self.target,
            job.drafter(self.drafter),
            plan,
            self.rule,
            self.prompt,
            2 * self.rounds + extra,
            (),
            self.runs - 1,
        )

    def _draft_trees(self, job: Job) -> list[float]:
        """Seconds of drafting that tree, in all rounds but the first; nothing is verified."""
        plan, prompt, clock = self.trees[job], self.prompt, PhaseTimer(self.target.decoder.device)
        prefill = start(self.target, self.drafter, prompt)
        draws = AddressedDraws(self.rule.seed, self.runs)
        plan.begin(self.drafter, self.rule, self.runs, prefill, draws)
        for i in range(self.rounds):
            clock.begin()
            plan.draft(prompt[-1], i, i, plan.K, (), clock)
            self.drafter.rollback(0)
        self.runs += 1
        return [row[DRAFTING] for row in clock.rows[1:]]

    def cost(self, name: str) -> CostModel:
        """The CostModel of medians of what was collected."""
        device = device_name(self.target.decoder.device)
        return median_cost(self.times, self.tree_times, self.K, name, device)

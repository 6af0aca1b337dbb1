"""ReplayJob: one replay of a sweep, and where jobs run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from simspec.cost import CostModel
from simspec.metrics import Metrics, grouped_summary
from simspec.policy import Policy
from simspec.simulate import replay
from simspec.trace import Trace
from simspec.tree_policy import TreePolicy
from simspec.tree_replay import replay_tree, tree_seconds


@dataclass(frozen=True)
class ReplayJob:
    """One replay: recording, policy and cost, with their names in the table, and the seed."""

    trace_name: str
    cost_name: str
    trace: Trace
    cost: CostModel
    policy: Policy | TreePolicy
    seed: int
    replicate: int

    @property
    def random(self) -> bool:
        return is_random(self.trace, self.policy)


def is_random(trace: Trace, policy: Policy | TreePolicy) -> bool:
    """Whether replicates differ: trees whose nodes are not drawn replay without a draw."""
    return policy.random or (trace.ratio is not None and isinstance(policy, Policy))


def run_jobs(todo: Sequence[ReplayJob], by: str, jobs: int = 1) -> Iterable[dict[Any, Metrics]]:
    """{group: Metrics} of each job, in order: here, or on threads; results do not depend on it."""
    if jobs == 1:
        return (_metrics(job.trace, job.policy, job.cost, job.seed, by) for job in todo)
    from joblib import Parallel, delayed

    # Threads: the kernel releases the GIL.
    parallel = Parallel(n_jobs=jobs, backend="threading", return_as="generator")
    results: Iterable[dict[Any, Metrics]] = parallel(
        delayed(_metrics)(job.trace, job.policy, job.cost, job.seed, by) for job in todo
    )
    return results


def _metrics(
    trace: Trace, policy: Policy | TreePolicy, cost: CostModel, seed: int, by: str
) -> dict[Any, Metrics]:
    cost = cost.reading(policy.reads)
    groups, K = _groups(trace, by), policy.longest(trace.K)
    if isinstance(policy, TreePolicy):
        rounds = replay_tree(trace, policy)
        seconds = tree_seconds(rounds, trace, policy, cost)
        return grouped_summary(rounds, trace, cost, groups, K, seconds)
    rounds = replay(trace, policy, seed=seed, cost=cost)
    return grouped_summary(rounds, trace, cost, groups, K)


def _groups(trace: Trace, by: str) -> list[str]:
    if by == "trace":
        return ["all"] * trace.sequences
    groups = list(trace.meta.tasks if by == "task" else trace.meta.ids)
    if by == "prompt" and len(set(groups)) < len(groups):
        groups = [f"{name}#{s}" for s, name in enumerate(groups)]
    return groups

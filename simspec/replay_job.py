"""ReplayJob: one replay of a sweep, and where jobs run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simspec.cluster import cluster_results
from simspec.cost import CostModel
from simspec.metrics import Metrics, grouped_summary
from simspec.policy import Policy
from simspec.replicate_seconds import replicate_seconds
from simspec.simulate import replay
from simspec.trace import Trace, TraceMeta
from simspec.tree_policy import TreePolicy
from simspec.tree_replay import replay_tree, tree_rounds, tree_seconds

T = TypeVar("T")


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


def run_jobs(
    todo: Sequence[ReplayJob], by: str, jobs: int = 1, cluster: str | None = None
) -> Iterable[dict[Any, Metrics]]:
    """{group: Metrics} of each job, in order: here, on threads, or on the workers of a cluster.

    Results do not depend on it. cluster: the address of a Dask scheduler; errors of
    `cluster_results`.
    """
    calls = [(job.trace, job.policy, job.cost, job.seed, by) for job in todo]
    if cluster is not None:
        traces = {id(job.trace): job.trace for job in todo}
        return cluster_results(cluster, _metrics, calls, list(traces.values()))
    return _on_threads(_metrics, calls, jobs)


def run_seconds(todo: Sequence[ReplayJob], jobs: int = 1) -> Iterable[NDArray[np.float64]]:
    """`sequence_seconds` of each job, in order; results do not depend on the number of threads."""
    return _on_threads(sequence_seconds, [(job,) for job in todo], jobs)


def _on_threads(function: Callable[..., T], calls: Iterable[Any], jobs: int) -> Iterable[T]:
    if jobs == 1:
        return (function(*call) for call in calls)
    from joblib import Parallel, delayed

    # Threads: the kernel releases the GIL.
    parallel = Parallel(n_jobs=jobs, backend="threading", return_as="generator")
    results: Iterable[T] = parallel(delayed(function)(*call) for call in calls)
    return results


def _metrics(
    trace: Trace, policy: Policy | TreePolicy, cost: CostModel, seed: int, by: str
) -> dict[Any, Metrics]:
    cost = cost.reading(policy.reads)
    groups, K = group_labels(trace.meta, by), policy.longest(trace.K)
    if isinstance(policy, TreePolicy):
        rounds = replay_tree(trace, policy)
        seconds = tree_seconds(rounds, trace, policy, cost)
        return grouped_summary(rounds, trace, cost, groups, K, seconds)
    rounds = replay(trace, policy, seed=seed, cost=cost)
    return grouped_summary(rounds, trace, cost, groups, K)


def sequence_seconds(job: ReplayJob) -> NDArray[np.float64]:
    """float64[S, 1 + R]: seconds of each sequence at the job's costs, then at their replicates.

    The policy plans with the costs as measured. Sums are in the order of the rounds.
    """
    cost = job.cost.reading(job.policy.reads)
    tree: tuple[Any, Any] | None = None
    if isinstance(job.policy, TreePolicy):
        rounds, rows, backlog = tree_rounds(job.trace, job.policy)
        tree = rows, backlog
        seconds = cost.seconds_tree(rounds, *tree)
    else:
        rounds = replay(job.trace, job.policy, seed=job.seed, cost=cost)
        seconds = cost.seconds(rounds)
    sequence = np.repeat(np.arange(job.trace.sequences), np.diff(rounds.offset))
    spent: Any = np.bincount(sequence, seconds, job.trace.sequences)
    return np.column_stack((spent, replicate_seconds(rounds, cost, tree)))


def group_labels(meta: TraceMeta, by: str) -> list[str]:
    """The group of each sequence, for `by` as in a sweep."""
    if by == "trace":
        return ["all"] * len(meta.ids)
    groups = list(meta.tasks if by == "task" else meta.ids)
    if by == "prompt" and len(set(groups)) < len(groups):
        groups = [f"{name}#{s}" for s, name in enumerate(groups)]
    return groups

"""ReplayJob: one replay of a sweep, and where jobs run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from simspec.cluster import cluster_results
from simspec.cost import CostModel
from simspec.metrics import Metrics, grouped_summary
from simspec.policy import Policy
from simspec.simulate import replay
from simspec.trace import Trace, TraceMeta
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
    if jobs == 1:
        return (_metrics(*call) for call in calls)
    from joblib import Parallel, delayed

    # Threads: the kernel releases the GIL.
    parallel = Parallel(n_jobs=jobs, backend="threading", return_as="generator")
    results: Iterable[dict[Any, Metrics]] = parallel(delayed(_metrics)(*call) for call in calls)
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


def group_labels(meta: TraceMeta, by: str) -> list[str]:
    """The group of each sequence, for `by` as in a sweep."""
    if by == "trace":
        return ["all"] * len(meta.ids)
    groups = list(meta.tasks if by == "task" else meta.ids)
    if by == "prompt" and len(set(groups)) < len(groups):
        groups = [f"{name}#{s}" for s, name in enumerate(groups)]
    return groups

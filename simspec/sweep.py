"""Policies x traces x costs x replicates, as one tidy table."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from os import PathLike
from typing import Any

from simspec import policies as built_in
from simspec.cluster import check_cluster
from simspec.kept_results import KeptResults, job_keys
from simspec.metrics import Metrics
from simspec.names import printable
from simspec.policy import Policy, PolicyError
from simspec.replay_job import ReplayJob, is_random, run_jobs
from simspec.replay_kernel import kernel
from simspec.sweep_inputs import (
    Cost,
    Policies,
    Recordings,
    check_policy,
    named_costs,
    named_traces,
    policy_list,
)  # fmt: skip
from simspec.trace import Trace

BY = ("trace", "task", "prompt")
FIGURES = tuple(field.name for field in fields(Metrics) if field.name != "accept_by_depth")


def sweep(  # noqa: PLR0913
    traces: Recordings,
    policies: Policies,
    costs: Cost | Mapping[str, Cost] = 0.1,
    replicates: int = 4,
    seed: int = 0,
    by: str = "trace",
    jobs: int = 1,
    progress: bool = True,
    keep: str | PathLike[str] | None = None,
    cluster: str | None = None,
) -> Any:
    """Replays every policy on every trace at every cost: a pandas DataFrame, one row per
    combination and group.

    | argument   | accepts                                                                    |
    | ---------- | -------------------------------------------------------------------------- |
    | traces     | a Trace, a path, a list of either, or {name: either}                       |
    | policies   | a list of policies, texts ('fixed:3') or functions (trace, cost) -> policy |
    | costs      | a CostModel, a ratio c, {name: either}, or {trace name: either}            |
    | replicates | draws with seeds seed .. seed + replicates - 1, the same for all policies  |
    | by         | 'trace', 'task' or 'prompt': what a row's metrics are summed over          |
    | jobs       | threads; results do not depend on them                                     |
    | keep       | a file of results, from which the same sweep goes on after an interruption |
    | cluster    | the address of a Dask scheduler whose workers replay instead; same results |

    Costs keyed by the traces' names belong to those traces; with other names each trace is replayed
    at each cost. A prompt is one sequence. Replicates use common random numbers. A policy that
    draws nothing is replayed once and its row repeated for each replicate; on a recording of the
    rejection rule each replicate draws its own acceptance.

    Columns: trace, group, policy, cost, replicate, random and the fields of Metrics but
    accept_by_depth. Rows follow the order of the arguments. ValueError (PolicyError, TraceError)
    for what cannot run, before anything runs.
    """
    where = (jobs, progress, keep, cluster)
    rows = list(sweep_rows(traces, policies, costs, replicates, seed, by, *where))
    import pandas

    return pandas.DataFrame(rows)


def sweep_rows(  # noqa: PLR0913
    traces: Recordings,
    policies: Policies,
    costs: Cost | Mapping[str, Cost] = 0.1,
    replicates: int = 4,
    seed: int = 0,
    by: str = "trace",
    jobs: int = 1,
    progress: bool = False,
    keep: str | PathLike[str] | None = None,
    cluster: str | None = None,
) -> Iterator[dict[str, Any]]:
    """The rows of `sweep`, each as a dict as soon as it is known, in the same order."""
    check_sweep(by, replicates, jobs)
    if cluster is not None:
        if jobs > 1:
            raise ValueError(f"jobs is {jobs} beside a cluster, whose workers replay: leave it out")
        check_cluster(cluster)
    with _compiling(progress):
        todo = plan_jobs(named_traces(traces), policies, costs, replicates, seed)
    results = _with_progress(todo, _run(todo, by, jobs, keep, cluster), progress)
    return table_rows(todo, replicates, results)


def check_sweep(by: str, replicates: int, jobs: int = 1) -> None:
    """ValueError for arguments of a sweep that cannot be meant."""
    if by not in BY:
        raise ValueError(f"by is {by!r}, expected one of {', '.join(BY)}")
    if replicates < 1 or jobs < 1:
        raise ValueError(f"replicates is {replicates} and jobs {jobs}, expected at least 1 of each")


def _compiling(progress: bool) -> AbstractContextManager[Any]:
    if not progress:
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(
        "reading recordings, compiling policies (from the disk after the first time)"
    )


def plan_jobs(
    traces: Mapping[str, Trace],
    policies: Policies,
    costs: Cost | Mapping[str, Cost],
    replicates: int,
    seed: int,
) -> list[ReplayJob]:
    """The replays of a sweep, in order; ValueError for what cannot run."""
    todo = []
    for trace_name, trace in traces.items():
        for cost_name, cost in named_costs(costs, trace_name, trace, traces).items():
            resolved = [built_in.make(policy, trace, cost) for policy in policy_list(policies)]
            _check_names([policy.name for policy in resolved])
            for policy in resolved:
                check_policy(trace, policy, cost)
                if isinstance(policy, Policy):
                    kernel(policy)  # compiled here: threads only run it
                count = replicates if is_random(trace, policy) else 1
                todo += [
                    ReplayJob(trace_name, cost_name, trace, cost, policy, seed + i, i)
                    for i in range(count)
                ]
    return todo


def _check_names(names: list[str]) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            raise PolicyError(f"policies share a name, {name!r}: give each its own, and none twice")


def table_rows(
    todo: list[ReplayJob], replicates: int, results: Iterable[dict[Any, Metrics]]
) -> Iterator[dict[str, Any]]:
    """The rows of the results of these replays, as dicts."""
    for job, groups in zip(todo, results):
        for replicate in [job.replicate] if job.random else range(replicates):
            for group, metrics in groups.items():
                row = {
                    "trace": job.trace_name,
                    "group": group,
                    "policy": job.policy.name,
                    "cost": job.cost_name,
                    "replicate": replicate,
                    "random": job.random,
                }
                yield row | {name: getattr(metrics, name) for name in FIGURES}


def _run(
    todo: list[ReplayJob], by: str, jobs: int, keep: str | PathLike[str] | None, cluster: str | None
) -> Iterator[dict[Any, Metrics]]:
    if keep is None:
        yield from run_jobs(todo, by, jobs, cluster)
        return
    keys = job_keys(todo, by)
    with KeptResults(keep) as kept:
        missing = {key: job for key, job in zip(keys, todo) if key not in kept}
        yield from kept.completed(keys, run_jobs(list(missing.values()), by, jobs, cluster))


def _with_progress(
    todo: list[ReplayJob], results: Iterable[dict[Any, Metrics]], progress: bool
) -> Iterator[dict[Any, Metrics]]:
    if not progress:
        yield from results
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("replaying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    best = "", 0.0
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(todo))
        for job, groups in zip(todo, results):
            speedup = max(metrics.speedup for metrics in groups.values())
            if speedup > best[1] and job.policy.name not in built_in.CLAIRVOYANT:
                best = job.policy.name, speedup
            bar.update(
                task, advance=1, description=printable(f"best so far: {best[0]} {best[1]:.2f}")
            )
            yield groups

"""Policies x traces x costs x replicates, as one tidy table."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

from simspec import policies as built_in
from simspec.cost import CostModel
from simspec.metrics import Metrics, grouped_summary
from simspec.names import printable
from simspec.policy import Policy, PolicyError
from simspec.replay_kernel import kernel
from simspec.simulate import replay
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
from simspec.tree_policy import TreePolicy
from simspec.tree_replay import replay_tree, tree_seconds

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

    Costs keyed by the traces' names belong to those traces; with other names each trace is replayed
    at each cost. A prompt is one sequence. Replicates use common random numbers. A policy that
    draws nothing is replayed once and its row repeated for each replicate; on a recording of the
    rejection rule each replicate draws its own acceptance.

    Columns: trace, group, policy, cost, replicate, random and the fields of Metrics but
    accept_by_depth. Rows follow the order of the arguments. ValueError (PolicyError, TraceError)
    for what cannot run, before anything runs.
    """
    rows = list(sweep_rows(traces, policies, costs, replicates, seed, by, jobs, progress))
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
) -> Iterator[dict[str, Any]]:
    """The rows of `sweep`, each as a dict as soon as it is known, in the same order."""
    if by not in BY:
        raise ValueError(f"by is {by!r}, expected one of {', '.join(BY)}")
    if replicates < 1 or jobs < 1:
        raise ValueError(f"replicates is {replicates} and jobs {jobs}, expected at least 1 of each")
    with _compiling(progress):
        todo = _plan(named_traces(traces), policies, costs, replicates, seed)
    return _rows(todo, replicates, by, jobs, progress)


@dataclass(frozen=True)
class _Replay:
    """One replay of a sweep."""

    trace_name: str
    cost_name: str
    trace: Trace
    cost: CostModel
    policy: Policy | TreePolicy
    seed: int
    replicate: int

    @property
    def random(self) -> bool:
        return _is_random(self.trace, self.policy)


def _compiling(progress: bool) -> AbstractContextManager[Any]:
    if not progress:
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(
        "reading recordings, compiling policies (from the disk after the first time)"
    )


def _plan(
    traces: Mapping[str, Trace],
    policies: Policies,
    costs: Cost | Mapping[str, Cost],
    replicates: int,
    seed: int,
) -> list[_Replay]:
    todo = []
    for trace_name, trace in traces.items():
        for cost_name, cost in named_costs(costs, trace_name, trace, traces).items():
            resolved = [built_in.make(policy, trace, cost) for policy in policy_list(policies)]
            _check_names([policy.name for policy in resolved])
            for policy in resolved:
                check_policy(trace, policy, cost)
                if isinstance(policy, Policy):
                    kernel(policy)  # compiled here: threads only run it
                count = replicates if _is_random(trace, policy) else 1
                todo += [
                    _Replay(trace_name, cost_name, trace, cost, policy, seed + i, i)
                    for i in range(count)
                ]
    return todo


def _is_random(trace: Trace, policy: Policy | TreePolicy) -> bool:
    """Whether replicates differ: trees whose nodes are not drawn replay without a draw."""
    return policy.random or (trace.ratio is not None and isinstance(policy, Policy))


def _check_names(names: list[str]) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            raise PolicyError(f"policies share a name, {name!r}: give each its own, and none twice")


def _rows(
    todo: list[_Replay], replicates: int, by: str, jobs: int, progress: bool
) -> Iterator[dict[str, Any]]:
    results = _with_progress(todo, _run(todo, by, jobs), progress)
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


def _run(todo: list[_Replay], by: str, jobs: int) -> Iterable[dict[Any, Metrics]]:
    if jobs == 1:
        return (_replay(job, by) for job in todo)
    from joblib import Parallel, delayed

    # Threads: the kernel releases the GIL.
    parallel = Parallel(n_jobs=jobs, backend="threading", return_as="generator")
    results: Iterable[dict[Any, Metrics]] = parallel(delayed(_replay)(job, by) for job in todo)
    return results


def _with_progress(
    todo: list[_Replay], results: Iterable[dict[Any, Metrics]], progress: bool
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


def _replay(job: _Replay, by: str) -> dict[Any, Metrics]:
    trace, policy = job.trace, job.policy
    cost = job.cost.reading(policy.reads)
    groups, K = _groups(trace, by), policy.longest(trace.K)
    if isinstance(policy, TreePolicy):
        rounds = replay_tree(trace, policy)
        seconds = tree_seconds(rounds, trace, policy, cost)
        return grouped_summary(rounds, trace, cost, groups, K, seconds)
    rounds = replay(trace, policy, seed=job.seed, cost=cost)
    return grouped_summary(rounds, trace, cost, groups, K)


def _groups(trace: Trace, by: str) -> list[str]:
    if by == "trace":
        return ["all"] * trace.sequences
    groups = list(trace.meta.tasks if by == "task" else trace.meta.ids)
    if by == "prompt" and len(set(groups)) < len(groups):
        groups = [f"{name}#{s}" for s, name in enumerate(groups)]
    return groups

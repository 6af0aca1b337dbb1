"""Sweeps: policies x traces x costs x replicates, given in any form, as one tidy table."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from importlib.metadata import version
from os import PathLike
from typing import Any, TypeAlias

from simspec import policies as built_in
from simspec.cost.model import CostModel
from simspec.numerics.compile import fingerprint
from simspec.output.names import printable
from simspec.policies.oracles import greedy_oracle, oracle
from simspec.policy.policy import Policy, PolicyError
from simspec.policy_kind import DeferredPolicy
from simspec.replay.cluster import check_cluster
from simspec.replay.kernel import kernel
from simspec.replay.metrics import Metrics
from simspec.replay.replay import ReplayJob, is_random, prepare, run_jobs
from simspec.trace.file import digest
from simspec.trace.trace import Trace, load_trace
from simspec.tree.policy import TreePolicy
from simspec.tree.replay import prepare_tree
from simspec.tree.tree import MAX_NODES

Recording: TypeAlias = Trace | str | PathLike[str]
Recordings: TypeAlias = Recording | Sequence[Recording] | Mapping[str, Recording]
Cost: TypeAlias = CostModel | float
AnyPolicy: TypeAlias = (
    Policy | TreePolicy | DeferredPolicy | str | Callable[[Trace, CostModel], Policy | TreePolicy]
)
Policies: TypeAlias = AnyPolicy | Sequence[AnyPolicy]


def supported_policies(
    traces: Mapping[str, Trace],
    policies: Policies,
    costs: Mapping[str, Cost],
    all_used: bool = True,
) -> tuple[dict[str, list[AnyPolicy]], list[str]]:
    """({recording: the policies that it supports, in order}, one note with the reason for each that
    it does not).

    Recordings of different drafters may lack a feature that a policy reads, or be less deep. With
    all_used a policy that no recording supports raises its first error, as `sweep` would.
    """
    supported: dict[str, list[AnyPolicy]] = {name: [] for name in traces}
    refused: list[tuple[AnyPolicy, str, ValueError]] = []
    for policy in policy_list(policies):
        parsed = built_in.parse(policy) if isinstance(policy, str) else policy
        errors = []
        for name, trace in traces.items():
            cost = cost_model(costs[name], trace)
            try:
                # The oracles take long to plan, and run on every trace whose accepted lengths are
                # known.
                planned = parsed in (oracle, greedy_oracle)
                if trace.ratio is not None or not planned:
                    check_policy(trace, built_in.make(parsed, trace, cost), cost)
                supported[name].append(policy)
            except ValueError as error:
                errors.append((policy, name, error))
        if all_used and len(errors) == len(traces):
            raise errors[0][2]
        refused += errors
    notes = [
        f"{getattr(policy, 'name', policy)} is left out on {name}: {error}"
        for policy, name, error in refused
    ]
    return {name: chosen for name, chosen in supported.items() if chosen}, notes


def check_policy(trace: Trace, policy: Policy | TreePolicy, cost: CostModel) -> None:
    """ValueError where the policy cannot be replayed on this trace at these costs."""
    if isinstance(policy, Policy):
        prepare(trace, policy, cost)
    else:
        prepare_tree(trace, policy, cost)


def policy_list(policies: Policies) -> list[AnyPolicy]:
    """The policies as a list; ValueError for none."""
    one = isinstance(policies, (Policy, TreePolicy, str)) or callable(policies)
    listed: list[Any] = [policies] if one else list(policies)  # type: ignore[arg-type]
    if not listed:
        raise ValueError("no policy was given, expected at least one, such as 'fixed:3'")
    return listed


def named_traces(traces: Recordings) -> dict[str, Trace]:
    """{name: trace}, files loaded; ValueError for none."""
    if not isinstance(traces, Mapping):
        listed: list[Any] = list(traces) if isinstance(traces, (list, tuple)) else [traces]
        names = [_trace_name(trace) for trace in listed]
        if len(set(names)) < len(names):
            names = [f"{name}#{i}" for i, name in enumerate(names)]
        traces = dict(zip(names, listed))
    if not traces:
        raise ValueError("no trace was given, expected at least one")
    return {
        name: trace if isinstance(trace, Trace) else load_trace(trace)
        for name, trace in traces.items()
    }


def _trace_name(trace: Any) -> str:
    if isinstance(trace, Trace):
        return f"{trace.meta.target}|{trace.meta.drafter}"
    return str(trace)


def named_costs(
    costs: Cost | Mapping[str, Cost], name: str, trace: Trace, traces: Mapping[str, Trace]
) -> dict[str, CostModel]:
    """{name: cost model} to try on the trace of this name; ValueError for none."""
    if not isinstance(costs, Mapping):
        cost = cost_model(costs, trace)
        return {cost.name: cost}
    if not costs:
        raise ValueError("no cost model was given, expected at least one")
    if set(costs) == set(traces):
        cost = cost_model(costs[name], trace)
        return {cost.name: cost}
    return {key: replace(cost_model(cost, trace), name=str(key)) for key, cost in costs.items()}


def cost_model(cost: Cost, trace: Trace) -> CostModel:
    """The cost model of a model or a ratio; ValueError for anything else."""
    if isinstance(cost, CostModel):
        return cost
    if isinstance(cost, (int, float)) and not isinstance(cost, bool):
        return CostModel.from_ratio(cost, trace.K, MAX_NODES)
    raise ValueError(f"cost is {cost!r}, expected a CostModel or a ratio such as 0.1")


BY = ("trace", "task", "prompt")
FIGURES = tuple(field.name for field in fields(Metrics) if field.name != "accept_by_depth")


def sweep(
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
    | keep       | a folder of results (joblib), from which the same sweep goes on            |
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


def sweep_rows(
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
        if jobs > 1 or keep is not None:
            raise ValueError(
                "a cluster's workers replay: leave out --jobs and --keep, which are of this machine"
            )
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
) -> Iterable[dict[Any, Metrics]]:
    if keep is None:
        return run_jobs(todo, by, jobs, cluster)
    from joblib import Memory, Parallel, delayed

    kept = Memory(keep, verbose=0).cache(_kept_metrics, ignore=["job"])
    parallel = Parallel(n_jobs=jobs, backend="threading", return_as="generator")
    calls = (delayed(kept)(key, job, by) for key, job in zip(job_keys(todo), todo))
    results: Iterable[dict[Any, Metrics]] = parallel(calls)
    return results


def _kept_metrics(key: str, job: ReplayJob, by: str) -> dict[Any, Metrics]:
    (metrics,) = run_jobs([job], by)
    return metrics


def job_keys(todo: Sequence[ReplayJob]) -> list[str]:
    """A hash of what each result depends on: recording, policy and its code, cost, seed, versions.

    ValueError for a policy whose functions use what has no fingerprint.
    """
    from joblib import hash as hash_of

    versions = [version(name) for name in ("simspec", "numpy", "numba")]
    traces = {id(job.trace): job.trace for job in todo}
    digests = {key: digest(trace) for key, trace in traces.items()}
    keys = []
    for job in todo:
        values = [getattr(job.policy, field.name) for field in fields(job.policy)]
        prints = [fingerprint(value) if callable(value) else value for value in values]
        if any(callable(value) and found is None for value, found in zip(values, prints)):
            raise ValueError(
                f"policy {job.policy.name!r} uses objects whose changes cannot be detected: sweep "
                "it without --keep"
            )
        priced = job.cost.to_dict()
        keys.append(hash_of((versions, digests[id(job.trace)], prints, priced, job.seed)))
    return keys


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

"""Sweeps: policies x traces x costs x replicates, here or on a cluster, as one tidy table."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from importlib import import_module
from importlib.metadata import version
from os import PathLike
from typing import Any, TypeAlias, TypeVar
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray

from simspec import policies as built_in
from simspec.cost.model import CostModel
from simspec.numerics.compile import fingerprint
from simspec.output.files import reraised
from simspec.output.terminal import progress_bar
from simspec.policies.oracles import greedy_oracle, oracle
from simspec.policy.policy import Policy, PolicyError
from simspec.policy_kind import DeferredPolicy
from simspec.replay.metrics import Metrics, by_prompt, replicate_seconds, summary
from simspec.replay.replay import kernel, prepare, replay
from simspec.trace.file import digest
from simspec.trace.recordings import GIVE_COSTS
from simspec.trace.trace import Rounds, Trace, TraceMeta, load_trace
from simspec.tree.replay import prepare_tree, tree_rounds
from simspec.tree.tree import MAX_NODES, TreePolicy

Recording: TypeAlias = Trace | str | PathLike[str]
Recordings: TypeAlias = Recording | Sequence[Recording] | Mapping[str, Recording]
Cost: TypeAlias = CostModel | float | None
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

    Recordings of different drafters may lack a feature that a policy reads, be less deep, or have
    no costs, which is one note for all. With all_used a policy that no recording supports raises
    its first error, as `sweep` would; without, that of costs is the only note.
    """
    supported: dict[str, list[AnyPolicy]] = {name: [] for name in traces}
    refused: list[tuple[AnyPolicy, str, ValueError]] = []
    for policy in policy_list(policies):
        parsed = built_in.parse(policy) if isinstance(policy, str) else policy
        errors = []
        for name, trace in traces.items():
            cost = None if costs[name] is None else cost_model(costs[name], trace)
            try:
                # The oracles take long to plan, and run on every trace whose accepted lengths are
                # known.
                planned = parsed in (oracle, greedy_oracle)
                if cost is None or trace.ratio is not None or not planned:
                    check_policy(trace, resolved(parsed, trace, cost), cost)
                supported[name].append(policy)
            except ValueError as error:
                errors.append((policy, name, error))
        unpriced = any(isinstance(error, UnpricedError) for _, _, error in errors)
        if all_used and len(errors) == len(traces) and not unpriced:
            raise errors[0][2]
        refused += errors
    if all_used and not any(supported.values()):
        raise refused[0][2]
    notes = [
        f"{getattr(policy, 'name', policy)} is left out on {name}: {error}"
        for policy, name, error in refused
        if all_used and not isinstance(error, UnpricedError)
    ]
    planning = [str(getattr(p, "name", p)) for p, _, e in refused if isinstance(e, UnpricedError)]
    if planning:
        left_out = ", ".join(dict.fromkeys(planning))
        notes.append(f"left out where there are no costs to plan with: {left_out}")
    return {name: chosen for name, chosen in supported.items() if chosen}, notes


class UnpricedError(PolicyError):
    """A policy that plans with costs, where none are given."""


class _NoCosts:
    """In place of costs that nobody gave, for policies that do not read them."""

    def __getattr__(self, name: str) -> Any:
        raise UnpricedError("no costs are given")


def resolved(policy: AnyPolicy, trace: Trace, cost: CostModel | None) -> Policy | TreePolicy:
    """`policies.make`; without costs UnpricedError for a policy that plans with them."""
    stand_in: Any = _NoCosts()
    try:
        return built_in.make(policy, trace, stand_in if cost is None else cost)
    except UnpricedError:
        name = getattr(policy, "name", policy)
        raise UnpricedError(f"policy {name!r} plans with costs: {GIVE_COSTS}") from None


def check_policy(trace: Trace, policy: Policy | TreePolicy, cost: CostModel | None) -> None:
    """ValueError where the policy cannot be replayed on this trace at these costs."""
    if isinstance(policy, Policy):
        prepare(trace, policy, cost)
    else:
        prepare_tree(trace, policy, observed(cost, trace))


def observed(cost: CostModel | None, trace: Trace) -> CostModel:
    """The costs, or the ratio of `replay` where there are none: nothing is priced with it."""
    return CostModel.from_ratio(0.1, trace.K, MAX_NODES) if cost is None else cost


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
        names = [
            f"{trace.meta.target}|{trace.meta.drafter}" if isinstance(trace, Trace) else str(trace)
            for trace in listed
        ]
        if len(set(names)) < len(names):
            names = [f"{name}#{i}" for i, name in enumerate(names)]
        traces = dict(zip(names, listed))
    if not traces:
        raise ValueError("no trace was given, expected at least one")
    return {
        name: trace if isinstance(trace, Trace) else load_trace(trace)
        for name, trace in traces.items()
    }


def named_costs(
    costs: Cost | Mapping[str, Cost], name: str, trace: Trace, traces: Mapping[str, Trace]
) -> dict[str, CostModel | None]:
    """{name: cost model} to try on the trace of this name, None without costs; ValueError for an
    empty mapping.
    """
    if isinstance(costs, Mapping) and not costs:
        raise ValueError("no cost model was given, expected at least one")
    if not isinstance(costs, Mapping) or set(costs) == set(traces):
        given = costs[name] if isinstance(costs, Mapping) else costs
        if given is None:
            return {"": None}
        cost = cost_model(given, trace)
        return {cost.name: cost}
    return {key: replace(cost_model(cost, trace), name=str(key)) for key, cost in costs.items()}


def cost_model(cost: Cost, trace: Trace) -> CostModel:
    """The cost model of a model or a ratio; ValueError for anything else, None included."""
    if isinstance(cost, CostModel):
        return cost
    if isinstance(cost, (int, float)) and not isinstance(cost, bool):
        return CostModel.from_ratio(cost, trace.K, MAX_NODES)
    raise ValueError(f"cost is {cost!r}, expected a CostModel or a ratio such as 0.1")


T = TypeVar("T")


@dataclass(frozen=True)
class ReplayJob:
    """One replay: recording, policy and cost, with their names in the table, and the seed.

    cost None: tokens are counted, and nothing is priced.
    """

    trace_name: str
    cost_name: str
    trace: Trace
    cost: CostModel | None
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
        shared = {id(job.trace): job.trace for job in todo}
        return cluster_results(cluster, _metrics, calls, list(shared.values()))
    return _on_threads(_metrics, calls, jobs)


def _on_threads(function: Callable[..., T], calls: Iterable[Any], jobs: int) -> Iterable[T]:
    if jobs == 1:
        return (function(*call) for call in calls)
    from joblib import Parallel, delayed

    # Threads: the kernel releases the GIL.
    parallel = Parallel(n_jobs=jobs, backend="threading", return_as="generator")
    results: Iterable[T] = parallel(delayed(function)(*call) for call in calls)
    return results


def _metrics(
    trace: Trace, policy: Policy | TreePolicy, cost: CostModel | None, seed: int, by: str
) -> dict[Any, Metrics]:
    cost = observed(cost, trace).reading(policy.reads)
    groups, K = group_labels(trace.meta, by), policy.longest(trace.K)
    rounds, seconds, _ = priced_rounds(trace, policy, cost, seed)
    found: dict[Any, Metrics] = summary(rounds, trace, cost, groups, K, seconds)
    return found


def priced_rounds(
    trace: Trace, policy: Policy | TreePolicy, cost: CostModel, seed: int = 0
) -> tuple[Rounds, NDArray[np.float64], tuple[Any, Any] | None]:
    """(rounds, their seconds at costs that read the policy's features, (rows, backlog) of a tree).

    The last is what `replicate_seconds` takes; None for a policy of chains.
    """
    if isinstance(policy, TreePolicy):
        rounds, rows, backlog = tree_rounds(trace, policy)
        return rounds, cost.seconds_tree(rounds, rows, backlog), (rows, backlog)
    rounds = replay(trace, policy, seed=seed, cost=cost)
    return rounds, cost.seconds(rounds), None


TOKENS, ROUNDS, NODES, SECONDS, PASSES = range(5)
"""Columns of `prompt_figures`."""


def prompt_figures(
    trace: Trace, policy: Policy | TreePolicy, cost: CostModel, seed: int = 0
) -> NDArray[np.float64]:
    """float64[S, 5 + R] per prompt: tokens, rounds, nodes, seconds, passes, and seconds at the R
    replicates of the costs.

    The policy plans with the costs as measured. Sums are in the order of the rounds. PolicyError
    where the costs are too short.
    """
    cost = cost.reading(policy.reads)
    check_policy(trace, policy, cost)
    rounds, seconds, tree = priced_rounds(trace, policy, cost, seed)
    sums = [by_prompt(of, rounds) for of in (rounds.drafted, seconds, rounds.computed)]
    counts = np.diff(trace.offset), np.diff(rounds.offset)
    return np.column_stack((*counts, *sums, replicate_seconds(rounds, cost, tree)))


def priced_seconds(figures: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[S, 1 + R] of `prompt_figures`: seconds at the costs, then at their replicates."""
    return figures[:, [SECONDS, *range(PASSES + 1, figures.shape[1])]]


def group_labels(meta: TraceMeta, by: str) -> list[str]:
    """The group of each sequence, for `by` as in a sweep."""
    if by == "trace":
        return ["all"] * len(meta.ids)
    groups = list(meta.tasks if by == "task" else meta.ids)
    if by == "prompt" and len(set(groups)) < len(groups):
        groups = [f"{name}#{s}" for s, name in enumerate(groups)]
    return groups


BY = ("trace", "task", "prompt")
PRICED = ("cost", "seconds", "speedup")
"""Columns of a sweep that need costs."""
FIGURES = tuple(field.name for field in fields(Metrics) if field.name != "accept_by_depth")


def sweep(
    traces: Recordings,
    policies: Policies,
    costs: Cost | Mapping[str, Cost] = None,
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
    | costs      | a CostModel, a ratio c, {name: either}, or {trace name: either}; None: none |
    | replicates | draws with seeds seed .. seed + replicates - 1, the same for all policies  |
    | by         | 'trace', 'task' or 'prompt': what a row's metrics are summed over          |
    | jobs       | threads; results do not depend on them                                     |
    | keep       | a folder of results (joblib), from which the same sweep goes on            |
    | cluster    | the address of a Dask scheduler whose workers replay instead; same results |

    Costs keyed by the traces' names belong to those traces; with other names each trace is replayed
    at each cost. A prompt is one sequence. Replicates use common random numbers. A policy that
    draws nothing is replayed once and has one row, of replicate 0; on a recording of the rejection
    rule each replicate draws its own acceptance.

    Columns: trace, group, policy, cost, replicate, random and the fields of Metrics but
    accept_by_depth; without costs none of cost, seconds and speedup, and no policy that plans with
    costs. Rows follow the order of the arguments. ValueError (PolicyError, TraceError)
    for what cannot run, before anything runs.
    """
    where = (jobs, progress, keep, cluster)
    rows = list(sweep_rows(traces, policies, costs, replicates, seed, by, *where))
    import pandas

    return pandas.DataFrame(rows)


def sweep_rows(
    traces: Recordings,
    policies: Policies,
    costs: Cost | Mapping[str, Cost] = None,
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
    return table_rows(todo, results)


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
            made = [resolved(policy, trace, cost) for policy in policy_list(policies)]
            names: set[str] = set()
            for policy in made:
                if policy.name in names:
                    raise PolicyError(
                        f"policies share a name, {policy.name!r}: give each its own, and none twice"
                    )
                names.add(policy.name)
                check_policy(trace, policy, cost)
                if isinstance(policy, Policy):
                    kernel(policy)  # compiled here: threads only run it
                count = replicates if is_random(trace, policy) else 1
                todo += [
                    ReplayJob(trace_name, cost_name, trace, cost, policy, seed + i, i)
                    for i in range(count)
                ]
    return todo


def table_rows(
    todo: list[ReplayJob], results: Iterable[dict[Any, Metrics]]
) -> Iterator[dict[str, Any]]:
    """The rows of the results of these replays, as dicts."""
    for job, groups in zip(todo, results):
        for group, metrics in groups.items():
            row = {
                "trace": job.trace_name,
                "group": group,
                "policy": job.policy.name,
                "cost": job.cost_name,
                "replicate": job.replicate,
                "random": job.random,
                **{name: getattr(metrics, name) for name in FIGURES},
            }
            unknown = PRICED if job.cost is None else ()
            yield {name: value for name, value in row.items() if name not in unknown}


def _run(
    todo: list[ReplayJob], by: str, jobs: int, keep: str | PathLike[str] | None, cluster: str | None
) -> Iterable[dict[Any, Metrics]]:
    if keep is None:
        return run_jobs(todo, by, jobs, cluster)
    from joblib import Memory

    kept = Memory(keep, verbose=0).cache(_kept_metrics, ignore=["job"])
    return _on_threads(kept, [(key, job, by) for key, job in zip(job_keys(todo), todo)], jobs)


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
        priced = None if job.cost is None else job.cost.to_dict()
        keys.append(hash_of((versions, digests[id(job.trace)], prints, priced, job.seed)))
    return keys


def _with_progress(
    todo: list[ReplayJob], results: Iterable[dict[Any, Metrics]], progress: bool
) -> Iterator[dict[Any, Metrics]]:
    if not progress:
        yield from results
        return
    with progress_bar("replaying", len(todo)) as advance:
        for done, groups in enumerate(results, 1):
            advance(done)
            yield groups


CONNECT_SECONDS = 10
"""How long a scheduler, and then its first worker, may take to answer."""
SAME_VERSIONS = ("python", "simspec", "numpy", "numba")
"""What must be of one version everywhere: results are the same to the last bit."""


def check_cluster(address: str) -> None:
    """ValueError, one line, where Dask, its scheduler or a worker is missing, or versions vary."""
    with _connected(address):
        pass


def cluster_results(
    address: str,
    function: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
    shared: Sequence[Any],
) -> Iterator[Any]:
    """function(*call) of each call, in order, on the workers of the scheduler at this address.

    `shared` are large arguments: the scheduler keeps them, and a worker gets each once, not with
    every call. What a dead worker was to do, or to keep, others do and get. ValueError as for
    `check_cluster`; whatever `function` raises.
    """
    from joblib import Parallel, delayed, parallel_config

    with _connected(address) as client:
        with parallel_config(backend="dask", client=client):
            parallel = Parallel(return_as="generator")
        # What joblib sends instead of these. For a cluster of one thread it calls here, with these.
        parallel._backend.data_futures = {id(value): _kept(client, value) for value in shared}
        yield from parallel(delayed(function)(*call) for call in calls)


def _kept(client: Any, value: Any) -> Any:
    """The value as a task, which runs again where its result is lost; scattered data would not."""
    with catch_warnings():
        simplefilter("ignore")  # Dask's advice on large tasks
        return client.submit(_itself, value, pure=False)


def _itself(value: Any) -> Any:
    return value


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    try:
        client_of = import_module("distributed").Client
    except ImportError:
        raise ValueError(
            f"a sweep on {address} needs Dask, which is not installed: pip install "
            "'simspec[cluster]'"
        ) from None
    if "://" not in address:
        raise ValueError(
            f"{address!r} is no address of a Dask scheduler: expected the one that `dask "
            "scheduler` prints, such as tcp://10.0.0.1:8786"
        )
    what = f"no Dask scheduler answers at {address}"
    remedy = "start one with `dask scheduler`, and give the address that it prints"
    with reraised(ValueError, what, remedy, (OSError, ValueError)):
        client = client_of(address, timeout=CONNECT_SECONDS, set_as_default=False)
    with client:
        _check_workers(client, address)
        yield client


def _check_workers(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except TimeoutError:
        raise ValueError(
            f"the Dask scheduler at {address} has no worker: start one with `dask worker {address}`"
        ) from None
    found = client.get_versions(packages=["simspec", "numba"])
    here = found["client"]["packages"]
    for name, worker in found["workers"].items():
        for package in SAME_VERSIONS:
            there = worker["packages"][package]
            if there != here[package]:
                raise ValueError(
                    f"worker {name} has {package} {there}, this process {here[package]}: install "
                    "the same versions everywhere, or results would differ"
                )

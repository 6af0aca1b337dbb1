"""Policies x traces x costs x replicates, as one tidy table."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import fields, replace

from simspec import policies as policy_texts
from simspec.cost import CostModel
from simspec.metrics import Metrics, summary
from simspec.policy import Policy, PolicyError
from simspec.replay_kernel import kernel
from simspec.simulate import prepare, replay
from simspec.trace import Trace, load_trace
from simspec.tree import MAX_NODES
from simspec.tree_policy import TreePolicy
from simspec.tree_replay import prepare_tree, replay_tree, tree_seconds

BY = ("trace", "task", "prompt")
FIGURES = tuple(field.name for field in fields(Metrics) if field.name != "accept_by_depth")


def sweep(
    traces,
    policies,
    costs=0.1,
    replicates: int = 4,
    seed: int = 0,
    by: str = "trace",
    jobs: int = 1,
    progress: bool = True,
):
    """Replay every policy on every trace under every cost model: a pandas DataFrame, one row per
    combination and group.

    | argument | accepts |
    | --- | --- |
    | traces | a Trace, a path, a list of either, or {name: either} |
    | policies | a list of Policy, TreePolicy, text ('fixed:3') or callable (trace, cost) -> policy such as the oracle |
    | costs | a CostModel, a ratio c, {name: either} to try each, or {trace name: either} if the names are the traces' |
    | replicates | draws with seeds seed .. seed + replicates - 1, the same for all policies (common random numbers) |
    | by | 'trace', 'task' or 'prompt': what a row's metrics are summed over; a prompt is one sequence |
    | jobs | threads; neither they nor any order change a figure |

    A policy that draws nothing is replayed once and its row repeated for each replicate, so that
    replicates pair up; on a recording of the rejection rule each replicate draws acceptances of its
    own. Columns: trace, group, policy, cost, replicate, random and the fields of Metrics but
    accept_by_depth. Rows follow the order of the arguments. ValueError (PolicyError, TraceError)
    for what cannot run, before anything does.
    """
    done = list(sweep_rows(traces, policies, costs, replicates, seed, by, jobs, progress))
    import pandas

    return pandas.DataFrame(done)


def sweep_rows(
    traces, policies, costs=0.1, replicates=4, seed=0, by="trace", jobs=1, progress=False
) -> Iterator[dict]:
    """The rows of `sweep`, each as a dict as soon as it is known, in the same order."""
    if by not in BY:
        raise ValueError(f"by is {by!r}, expected one of {', '.join(BY)}")
    if replicates < 1 or jobs < 1:
        raise ValueError(f"replicates is {replicates} and jobs {jobs}, expected at least 1 of each")
    with _compiling(progress):
        todo = _planned(_traces(traces), policies, costs, replicates, seed)
    return _rows(todo, replicates, by, jobs, progress)


def supported_policies(
    traces: Mapping[str, Trace], policies, costs: Mapping, all_used: bool = True
) -> tuple[dict[str, list], list[str]]:
    """({recording: the policies it can be swept with, in order}, a note for each that it cannot,
    with the reason).

    For many recordings of different drafters: one may lack a feature that a policy reads, or be
    less deep. With all_used a policy that none can serve raises its first error, as `sweep` would;
    so a single recording refuses what it cannot serve.
    """
    kept: dict[str, list] = {name: [] for name in traces}
    refused: list[tuple] = []
    for policy in _listed(policies):
        given = policy_texts.parse(policy) if isinstance(policy, str) else policy
        errors = []
        for name, trace in traces.items():
            cost = _cost(costs[name], trace)
            try:
                # the oracles plan for long, and serve all where runs are known
                if trace.ratio is not None or given not in (
                    policy_texts.oracle,
                    policy_texts.greedy_oracle,
                ):
                    _prepare(trace, policy_texts.make(given, trace, cost), cost)
                kept[name].append(policy)
            except ValueError as error:
                errors.append((policy, name, error))
        if all_used and len(errors) == len(traces):
            raise errors[0][2]
        refused += errors
    notes = [
        f"{getattr(policy, 'name', policy)} is left out on {name}: {error}"
        for policy, name, error in refused
    ]
    return {name: listed for name, listed in kept.items() if listed}, notes


def _compiling(progress):
    if not progress:
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(
        "reading recordings, compiling policies (from the disk after the first time)"
    )


def _planned(named, policies, costs, replicates, seed):
    todo = []
    for trace_name, trace in named.items():
        for cost_name, cost in _costs(costs, trace_name, trace, named).items():
            made = [policy_texts.make(policy, trace, cost) for policy in _listed(policies)]
            if len({policy.name for policy in made}) < len(made):
                twice = [
                    policy.name
                    for i, policy in enumerate(made)
                    if policy.name in {p.name for p in made[:i]}
                ]
                raise PolicyError(
                    f"policies share a name, {twice[0]!r}: give each its own, and none twice"
                )
            for policy in made:
                _prepare(trace, policy, cost)
                if isinstance(policy, Policy):
                    kernel(policy)  # compiled here: threads only run it
                head = {"trace": trace_name, "policy": policy.name, "cost": cost_name}
                many = replicates if policy.random or trace.ratio is not None else 1
                todo += [(head, trace, cost, policy, seed + i, i) for i in range(many)]
    return todo


def _prepare(trace, policy, cost):
    return (
        prepare(trace, policy, cost)
        if isinstance(policy, Policy)
        else prepare_tree(trace, policy, cost)
    )


def _rows(todo, replicates, by, jobs, progress):
    for (head, trace, _, policy, _, replicate), groups in zip(
        todo, _shown(todo, _run(todo, by, jobs), progress)
    ):
        random = policy.random or trace.ratio is not None
        for copy in [replicate] if random else range(replicates):
            for group, metrics in groups.items():
                row = {
                    "trace": head["trace"],
                    "group": group,
                    "policy": policy.name,
                    "cost": head["cost"],
                }
                row |= {"replicate": copy, "random": random}
                yield row | {name: getattr(metrics, name) for name in FIGURES}


def _run(todo, by, jobs):
    if jobs == 1:
        return (_one(*job[1:5], by) for job in todo)
    from joblib import Parallel, delayed

    # Threads: the kernel releases the GIL.
    return Parallel(n_jobs=jobs, backend="threading", return_as="generator")(
        delayed(_one)(*job[1:5], by) for job in todo
    )


def _shown(todo, results, progress):
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
        TextColumn("{task.description}"),
    )
    best = "", 0.0
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(todo))
        for (head, *_), groups in zip(todo, results):
            found = max(metrics.speedup for metrics in groups.values())
            if found > best[1] and head["policy"] not in policy_texts.CLAIRVOYANT:
                best = head["policy"], found
            bar.update(task, advance=1, description=f"best so far: {best[0]} {best[1]:.2f}")
            yield groups


def _one(trace, cost, policy, seed, by):
    groups = {
        "trace": ("all",) * trace.sequences,
        "task": trace.meta.tasks,
        "prompt": trace.meta.ids,
    }[by]
    if by == "prompt" and len(set(groups)) < len(groups):
        groups = [f"{name}#{s}" for s, name in enumerate(groups)]
    cost = cost.reading(policy.reads)
    if isinstance(policy, TreePolicy):
        rounds = replay_tree(trace, policy)
        return summary(
            rounds,
            trace,
            cost,
            groups,
            policy.longest(trace.K),
            tree_seconds(rounds, trace, policy, cost),
        )
    rounds = replay(trace, policy, seed=seed, cost=cost)
    return summary(rounds, trace, cost, groups, K=policy.longest(trace.K))


def _listed(policies):
    policies = (
        [policies]
        if isinstance(policies, (Policy, TreePolicy, str)) or callable(policies)
        else list(policies)
    )
    if not policies:
        raise ValueError("no policy was given, expected at least one, such as 'fixed:3'")
    return policies


def _traces(traces) -> dict:
    if not isinstance(traces, Mapping):
        listed = list(traces) if isinstance(traces, (list, tuple)) else [traces]
        names = [
            f"{t.meta.target}|{t.meta.drafter}" if isinstance(t, Trace) else str(t) for t in listed
        ]
        if len(set(names)) < len(names):
            names = [f"{name}#{i}" for i, name in enumerate(names)]
        traces = dict(zip(names, listed))
    if not traces:
        raise ValueError("no trace was given, expected at least one")
    return {name: t if isinstance(t, Trace) else load_trace(t) for name, t in traces.items()}


def _costs(costs, trace_name, trace, named) -> dict:
    if isinstance(costs, Mapping):
        if not costs:
            raise ValueError("no cost model was given, expected at least one")
        if set(costs) == set(named):
            cost = _cost(costs[trace_name], trace)
            return {cost.name: cost}
        return {name: replace(_cost(cost, trace), name=str(name)) for name, cost in costs.items()}
    cost = _cost(costs, trace)
    return {cost.name: cost}


def _cost(cost, trace) -> CostModel:
    if isinstance(cost, CostModel):
        return cost
    if isinstance(cost, (int, float)) and not isinstance(cost, bool):
        return CostModel.from_ratio(cost, trace.K, MAX_NODES)
    raise ValueError(f"cost is {cost!r}, expected a CostModel or a ratio such as 0.1")

"""Arguments of a sweep: traces, costs and policies in any accepted form."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, TypeAlias

from simspec import policies as built_in
from simspec.cost import CostModel
from simspec.deferred_policy import DeferredPolicy
from simspec.policies.greedy_oracle import greedy_oracle
from simspec.policies.oracle import oracle
from simspec.policy import Policy
from simspec.simulate import prepare
from simspec.trace import Trace, load_trace
from simspec.tree import MAX_NODES
from simspec.tree_policy import TreePolicy
from simspec.tree_replay import prepare_tree

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

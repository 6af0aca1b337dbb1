"""Sweeps of a recording that is read in parts: memory is bounded by a part, not by the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from simspec import policies as built_in
from simspec.policies.greedy_oracle import greedy_oracle
from simspec.policies.oracle import oracle
from simspec.policy.policy import Policy, PolicyError
from simspec.replay.metrics import Totals, add_rounds, rates
from simspec.replay.replay import ReplayJob, group_labels, replays
from simspec.replay.sweep import (
    AnyPolicy,
    Cost,
    Policies,
    check_sweep,
    plan_jobs,
    policy_list,
    table_rows,
)
from simspec.trace.parts import stored_meta, trace_parts
from simspec.trace.trace import Trace
from simspec.tree.policy import TreePolicy
from simspec.tree.replay import replay_tree, tree_seconds


def part_sweep(
    path: str | PathLike[str],
    policies: Policies,
    cost: Cost = 0.1,
    replicates: int = 4,
    seed: int = 0,
    by: str = "trace",
    rows: int = 1 << 20,
    name: str | None = None,
) -> Iterator[dict[str, Any]]:
    """The rows of `sweep` for one recording of which at most `rows` rows are in memory at a time.

    They are equal to the last bit. A longer sequence is a separate part. name: of the recording
    in the rows, default its path. Errors as for `sweep` and `trace_parts`; PolicyError for policies
    that are planned from the whole recording (trees fitted to its ranks, tree_oracle, functions).
    """
    check_sweep(by, replicates)
    listed = policy_list(policies)
    for policy in listed:
        check_plannable(policy)
    label = str(path) if name is None else name
    labels = group_labels(stored_meta(path), by)
    index = {group: g for g, group in enumerate(dict.fromkeys(labels))}
    groups = np.array([index[group] for group in labels])
    first = 0
    partial: list[_PartialReplay] = []
    jobs: list[ReplayJob] = []
    for part in trace_parts(path, rows):
        jobs = plan_jobs({label: part}, listed, cost, replicates, seed)
        partial = partial or [_PartialReplay.start(job, len(index)) for job in jobs]
        for one, job in zip(partial, jobs):
            one.add(job, groups[first : first + part.sequences])
        first += part.sequences
    results = [rates(one.totals, index, job.cost) for one, job in zip(partial, jobs)]
    return table_rows(jobs, replicates, results)


def check_plannable(policy: AnyPolicy) -> None:
    """PolicyError for a policy that needs the whole recording before it can run."""
    parsed = built_in.parse(policy) if isinstance(policy, str) else policy
    # All chains resolve by depth and costs; the oracles plan each sequence alone.
    chain = isinstance(policy, str) and policy.partition(":")[0] in built_in.BUILTIN
    tree = isinstance(parsed, TreePolicy) and parsed.kind != "planned"
    if not (chain or tree or isinstance(parsed, Policy) or parsed in (oracle, greedy_oracle)):
        raise PolicyError(
            f"policy {getattr(policy, 'name', policy)!r} is planned from the whole recording: "
            "leave it out, or sweep without parts"
        )


@dataclass(frozen=True)
class _PartialReplay:
    """One replay, as far as the parts that were read; a stream's state is carried on."""

    policy: Policy | TreePolicy
    totals: Totals
    state: np.ndarray | None

    @classmethod
    def start(cls, job: ReplayJob, groups: int) -> "_PartialReplay":
        policy, state = job.policy, None
        if isinstance(policy, Policy) and policy.scope == "stream" and not _planned(policy):
            state = policy.start()[1]
        return cls(policy, Totals.zero(groups, job.trace.K), state)

    def add(self, job: ReplayJob, group: np.ndarray) -> None:
        trace, policy = job.trace, job.policy
        if not _planned(policy) and policy != self.policy:
            raise PolicyError(
                f"policy {policy.name!r} differs between parts of the recording: sweep it whole"
            )
        cost = job.cost.reading(policy.reads)
        rounds, seconds = self._replayed(trace, policy, cost, job.seed)
        add_rounds(self.totals, rounds, trace, group, policy.longest(trace.K), seconds)

    def _replayed(self, trace: Trace, policy: Any, cost: Any, seed: int) -> tuple[Any, np.ndarray]:
        if isinstance(policy, TreePolicy):
            rounds = replay_tree(trace, policy)
            return rounds, tree_seconds(rounds, trace, policy, cost)
        rounds = next(replays(trace, policy, (seed,), cost, self.state))
        return rounds, cost.seconds(rounds)


def _planned(policy: Policy | TreePolicy) -> bool:
    """Whether the policy holds a plan of the rows of one part."""
    return policy.name in built_in.CLAIRVOYANT

"""Replay of tree policies: their rounds on a recording, and the seconds of these."""

import numpy as np

from simspec.cost.model import CostModel
from simspec.numerics.compile import cached_njit
from simspec.policy.policy import PolicyError
from simspec.trace.rounds import Rounds
from simspec.trace.trace import Trace
from simspec.tree.outcomes import check_trace, outcomes
from simspec.tree.policy import TreePolicy

Array = np.ndarray


def replay_tree(trace: Trace, policy: TreePolicy, cost: CostModel | None = None) -> Rounds:
    """The rounds of this policy, exactly: computed counts the drafter's passes, drafted the nodes
    submitted.

    A cost is checked to price them, see `prepare_tree`. TraceError, TreeError, PolicyError as for
    `outcomes`.
    """
    if cost is not None:
        prepare_tree(trace, policy, cost)
    return tree_rounds(trace, policy)[0]


def tree_seconds(rounds: Rounds, trace: Trace, policy: TreePolicy, cost: CostModel) -> np.ndarray:
    """float64[R]: seconds of the rounds of `replay_tree` for this trace and policy.

    Pass cost.reading(policy.reads), see `CostModel.seconds_tree`. ValueError for other rounds, and
    for more levels or nodes than are priced.
    """
    replayed, rows, backlog = tree_rounds(trace, policy)
    if replayed != rounds:
        raise ValueError(
            f"the rounds are not those of {policy.name} on this trace: replay it there"
        )
    return cost.seconds_tree(rounds, rows, backlog)


def prepare_tree(trace: Trace, policy: TreePolicy, cost: CostModel) -> None:
    """Check that trace and costs hold what the policy needs: TraceError, TreeError, PolicyError."""
    check_trace(trace, policy)
    outcome = outcomes(trace, policy)
    for kind, most, priced in (
        ("levels", int(outcome.levels.max()), cost.K),
        ("nodes", int(outcome.nodes.max()), cost.nodes),
    ):
        if most > priced:
            raise PolicyError(
                f"cost {cost.name!r} prices {priced} {kind}, policy {policy.name!r} takes {most}: "
                "measure with more rows"
            )


def tree_rounds(trace: Trace, policy: TreePolicy) -> tuple[Rounds, np.ndarray, np.ndarray]:
    """(rounds, the drafter's rows [R], its backlog after each round in which it drafted [R])."""
    outcome = outcomes(trace, policy)
    choice = policy.plan[0] if policy.kind == "planned" else np.zeros((trace.rows, 1), np.int64)
    fields = np.ascontiguousarray(np.stack([np.atleast_2d(field) for field in outcome]))
    columns, offset = np.empty((trace.rows, 6), np.int64), np.zeros(trace.sequences + 1, np.int64)
    _replay(trace.offset, fields, choice, columns, offset)
    row, levels, nodes, rows, accepted, backlog = columns[: offset[-1]].T.copy()
    return Rounds(offset, row, levels, nodes, accepted), rows, backlog


@cached_njit
def _replay(
    offset: Array, outcome: Array, choice: Array, columns: Array, out_offset: Array
) -> None:
    # outcome [5, C, N] in the order of Outcome's fields
    r = 0
    for s in range(offset.shape[0] - 1):
        t, backlog = offset[s], 0
        while t < offset[s + 1]:
            c = choice[t, min(backlog, choice.shape[1] - 1)]
            columns[r, 0] = t
            for f in range(5):
                columns[r, f + 1] = outcome[f, c, t]
            backlog = outcome[4, c, t] if outcome[0, c, t] > 0 else backlog + 1
            t += outcome[3, c, t] + 1
            r += 1
        out_offset[s + 1] = r

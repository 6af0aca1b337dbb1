"""Replay of tree policies: the rounds they make on a recording, and their seconds."""

import numpy as np

from simspec.compile_cache import cached_njit
from simspec.cost import CostModel
from simspec.policy import PolicyError
from simspec.rounds import Rounds
from simspec.trace import Trace
from simspec.tree_outcomes import Outcome, check_trace, outcomes
from simspec.tree_policy import TreePolicy


def replay_tree(trace: Trace, policy: TreePolicy, cost: CostModel | None = None) -> Rounds:
    """The rounds that this policy makes: computed counts the drafter's passes, drafted the nodes
    submitted; exact, no draw.

    Given a cost, it is checked to price them: see `prepare_tree`. TraceError, TreeError,
    PolicyError as for `outcomes`.
    """
    if cost is not None:
        prepare_tree(trace, policy, cost)
    return _walk(trace, policy)[0]


def tree_seconds(rounds: Rounds, trace: Trace, policy: TreePolicy, cost: CostModel) -> np.ndarray:
    """float64[R]: seconds of the rounds that `replay_tree` gives for this trace and policy, see
    `CostModel.seconds_tree`.

    Pass cost.reading(policy.reads). ValueError for other rounds, and for more levels or nodes than
    are priced.
    """
    made, rows, owed = _walk(trace, policy)
    if made != rounds:
        raise ValueError(
            f"the rounds are not those of {policy.name} on this trace: replay it there"
        )
    return cost.seconds_tree(rounds, rows, owed)


def prepare_tree(trace: Trace, policy: TreePolicy, cost: CostModel) -> None:
    """Check that trace and costs hold what the policy needs: TraceError, TreeError, PolicyError."""
    check_trace(trace, policy)
    found = outcomes(trace, policy)
    for what, most, priced in (
        ("levels", int(found.levels.max()), cost.K),
        ("nodes", int(found.nodes.max()), cost.nodes),
    ):
        if most > priced:
            raise PolicyError(
                f"cost {cost.name!r} prices {priced} {what}, policy {policy.name!r} takes {most}: "
                "measure with more rows"
            )


def _walk(trace, policy):
    """(Rounds, the drafter's rows [R], rows owed after each round where it drafted [R])."""
    found = outcomes(trace, policy)
    choice = policy.plan[0] if policy.kind == "planned" else np.zeros((trace.rows, 1), np.int64)
    both = np.stack([np.atleast_2d(each) for each in found])
    columns, offset = np.empty((trace.rows, 6), np.int64), np.zeros(trace.sequences + 1, np.int64)
    _chase(trace.offset, np.ascontiguousarray(both), choice, columns, offset)
    row, *figures = columns[: offset[-1]].T.copy()
    levels, nodes, rows, accepted, owed = Outcome(*figures)
    return Rounds(offset, row, levels, nodes, accepted), rows, owed


@cached_njit
def _chase(offset, outcome, choice, columns, out_offset):
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

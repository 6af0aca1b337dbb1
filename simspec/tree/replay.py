"""Tree policies on a recording: the outcome of a round at each row, replay and its seconds."""

from typing import Any, NamedTuple

import numpy as np

from simspec.cost.model import CostModel
from simspec.numerics.compile import cached_njit
from simspec.policy.policy import PolicyError
from simspec.trace.quantization import decode, table
from simspec.trace.trace import Rounds, Trace, TraceError
from simspec.tree.search import check_exact, draft_room
from simspec.tree.tree import MAX_SUBMITTED, TreePolicy

SEARCHED = ("dynamic", "beam")
"""Kinds of trees whose nodes are chosen, not drawn, under the rejection rule too.

The target draws a token from p, and it is accepted exactly if the tree has it. So rounds follow
from the recorded tokens, and the replay is exact in distribution without a draw.
"""
_EDGES = (0.3, 0.6, 0.8)
_WIDTHS = (7, 5, 3, 1)


class Outcome(NamedTuple):
    """The round that starts at each row, int64[N] each."""

    levels: np.ndarray  # passes of the drafter
    nodes: np.ndarray  # tokens submitted
    rows: np.ndarray  # rows that the drafter reads in those passes, at least one in each
    accepted: np.ndarray  # nodes on the target's path
    backlog: np.ndarray  # the drafter's backlog afterwards, where levels > 0 (else one more row)


def outcomes(trace: Trace, policy: TreePolicy) -> Outcome:
    """The exact outcome of each row's round under this policy; [C, N] each if it is planned.

    A node of a static tree at slot j is accepted while the ranks rank[t, 0] .. rank[t, j] lead to a
    node of the tree; of a dynamic tree while order[t, j] < nodes. No node is drafted deeper than
    min(K, budget left - 1); `depth` cuts CAPE's chain only. TraceError for a trace without what the
    policy needs, TreeError for a tree deeper than K, PolicyError for a chain longer than K.
    """
    check_trace(trace, policy)
    if policy.kind == "planned":
        planned: Outcome = policy.plan[1]
        return planned
    kinds = {"static": _static, "dynamic": _dynamic, "beam": _beam, "cape": _cape}
    return kinds[policy.kind](trace, policy)


def check_trace(trace: Trace, policy: TreePolicy) -> None:
    """The errors of `outcomes` for this trace and policy."""
    if policy.kind not in SEARCHED:
        check_exact(trace)
    if policy.kind == "dynamic" and trace.order is None:
        raise TraceError("this trace records no order of dynamic trees: record it with one")
    if policy.kind == "beam" and trace.beam is None:
        raise TraceError("this trace records no beam search: record it with one")
    if policy.kind in ("static", "cape"):
        _check_rank(trace)
    if policy.kind == "static":
        policy.tree.within(trace.K)
    if policy.kind == "planned" and len(policy.plan[0]) != trace.rows:
        raise PolicyError(
            f"{policy.name} was planned for {len(policy.plan[0])} rows, "
            f"the trace has {trace.rows}: plan it for this one"
        )
    if policy.longest(trace.K) > trace.K:
        raise PolicyError(
            f"{policy.name} drafts chains of {policy.k}, here drafts reach {trace.K}: "
            "lower k, or record deeper"
        )
    trace.features(policy.reads)


def _check_rank(trace: Trace) -> None:
    rank = trace.rank
    if rank is None:
        raise TraceError(
            "this trace records no rank, which trees and CAPE's sets need: record it again"
        )
    one_token = (rank == 255).any() and not ((rank > 0) & (rank < 255)).any()
    if not trace.meta.features and one_token:
        raise TraceError(
            f"drafter {trace.meta.drafter!r} ranks only the one token that it proposes: "
            "a tree has none to branch to"
        )


def _static(trace: Trace, policy: TreePolicy) -> Outcome:
    cap, left = draft_room(trace)
    tree, rank = policy.tree, _present(trace.rank)
    cuts = [tree.cut(level) for level in range(tree.levels + 1)]
    levels = np.minimum(cap, tree.levels)
    nodes = np.array([len(cut) for cut in cuts], np.int64)[levels]
    rows = np.array([cut.rows for cut in cuts], np.int64)[levels]
    child = np.zeros((len(tree) + 1, 256), np.int64)  # by row and rank; 0: none
    child[list(tree.parent), list(tree.rank)] = np.arange(1, len(tree) + 1)
    row, accepted = np.zeros(trace.rows, np.int64), np.zeros(trace.rows, np.int64)
    on_path, reach = np.ones(trace.rows, bool), np.minimum(levels, left)
    for j in range(tree.levels):
        row = child[row, rank[:, j]]
        on_path &= (row > 0) & (j < reach)
        accepted += on_path
    return Outcome(levels, nodes, rows, accepted, accepted)


def _dynamic(trace: Trace, policy: TreePolicy) -> Outcome:
    cap, left = draft_room(trace)
    width, deepest = _searched(trace)
    levels = np.minimum(cap, deepest) if policy.nodes else np.zeros_like(cap)
    rows = _searched_rows(levels, width)
    nodes = np.minimum(rows * width, policy.nodes)
    reach = np.minimum(levels, left)[:, None]
    inside = (_present(trace.order) < policy.nodes) & (np.arange(trace.K) < reach)
    accepted = np.logical_and.accumulate(inside, axis=1).sum(axis=1)
    return Outcome(levels, nodes, rows, accepted, accepted)


def _beam(trace: Trace, policy: TreePolicy) -> Outcome:
    cap, left = draft_room(trace)
    width, deepest = _searched(trace)
    levels = np.minimum(cap, deepest)
    on_path, nodes = _present(trace.beam).astype(np.int64).T
    accepted = np.minimum(on_path, left)
    return Outcome(levels, nodes, _searched_rows(levels, width), accepted, accepted)


def _searched(trace: Trace) -> tuple[int, int]:
    width, levels = trace.meta.tree  # type: ignore[misc]
    return width, levels


def _searched_rows(levels: np.ndarray, width: int) -> np.ndarray:
    """One row in the first pass offers `width` nodes, then each of `width` rows as many."""
    return np.where(levels > 0, 1 + (levels - 1) * width, 0)


def sibling_counts(confidence: Any, sets: str | int) -> np.ndarray:
    """How many siblings CAPE gives to chain tokens of this confidence, int64 in its shape.

    | sets     | siblings                                                                          |
    | -------- | --------------------------------------------------------------------------------- |
    | section  | 7, 5, 3, 1 for a confidence in (0, .3], (.3, .6], (.6, .8], (.8, 1] (section 4.2) |
    | appendix | the same over [0, .3), [.3, .6), [.6, .8), [.8, 1] (Appendix A)                   |
    | a number | that many, whatever the confidence                                                |

    Appendix A prints counts with the token itself, 8, 8, 8, 6, 6, 6, 4, 4, 2, 2 by floor(10 p).
    Printed beyond its end, p = 1 belongs to the last bin here.
    """
    if not isinstance(sets, str):
        return np.full(np.shape(confidence), sets, np.int64)
    side = "left" if sets == "section" else "right"
    bins = np.searchsorted(_EDGES, confidence, side=side)  # type: ignore[call-overload]
    return np.array(_WIDTHS)[bins]


def _cape(trace: Trace, policy: TreePolicy) -> Outcome:
    cap, left = draft_room(trace)
    slot = np.arange(trace.K)
    k = np.minimum(np.minimum(cap, trace.depth), policy.longest(trace.K))
    confidence = np.zeros((trace.rows, trace.K))
    for name in policy.reads:
        codes = trace.feature[:, :, trace.features((name,))[0]]
        confidence = decode(codes, table(dict(trace.meta.features)[name]))
    wanted = np.where(slot < k[:, None], sibling_counts(confidence, policy.sets), 0)
    before = wanted.cumsum(axis=1) - wanted
    siblings = np.clip((MAX_SUBMITTED - k)[:, None] - before, 0, wanted)
    run, row = np.minimum(trace.run, k), np.arange(trace.rows)
    missed = np.minimum(run, trace.K - 1)
    in_set = _present(trace.rank)[row, missed] <= siblings[row, missed]
    saved = (run < np.minimum(k, left)) & in_set
    # After an accepted sibling the drafter has read the chain before it: only the sibling is its
    # backlog.
    backlog = np.where((run == k) | saved, 1, 0)
    return Outcome(k, k + siblings.sum(axis=1), k, run + saved, backlog)


def _present(array: np.ndarray | None) -> np.ndarray:
    """An optional array of a trace that `check_trace` requires."""
    assert array is not None
    return array


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

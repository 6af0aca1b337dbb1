"""What a round of a tree policy comes to at each row."""

from typing import NamedTuple

import numpy as np

from simspec.policy import PolicyError
from simspec.quantization import decode, table
from simspec.rank_acceptance import draft_room
from simspec.trace import Trace, TraceError
from simspec.tree_policy import MAX_SUBMITTED, TreePolicy

EDGES = (0.3, 0.6, 0.8)


WIDTHS = (7, 5, 3, 1)


class Outcome(NamedTuple):
    """What a round that starts at each row amounts to, int64[N] each.

    | field    | meaning                                                                            |
    | -------- | ------------------------------------------------------------------------------------ |
    | levels   | passes of the drafter                                                              |
    | nodes    | tokens submitted                                                                   |
    | rows     | rows that the drafter reads in those passes, one at least in each                  |
    | accepted | of the nodes, those on the text's path: emitted                                    |
    | owed     | rows that the drafter owes afterwards, where levels > 0 (else one more than before)  |
    """

    levels: np.ndarray
    nodes: np.ndarray
    rows: np.ndarray
    accepted: np.ndarray
    owed: np.ndarray


def outcomes(trace: Trace, policy: TreePolicy) -> Outcome:
    """What each row's round would come to under this policy, exactly; [C, N] each if it is planned.

    A node of a static tree at slot j is accepted while the ranks rank[t, 0] .. rank[t, j] lead to a node of the tree, of a dynamic one
    while order[t, j] < nodes; none is drafted below min(K, budget left - 1), and `depth` cuts CAPE's chain only. TraceError for a trace
    that lacks what this takes, TreeError for a tree deeper than K, PolicyError for a chain longer than K.
    """
    check_trace(trace, policy)
    if policy.kind == "planned":
        return policy.plan[1]
    return {"static": _static, "dynamic": _dynamic, "beam": _beam, "cape": _cape}[policy.kind](
        trace, policy
    )


def check_trace(trace: Trace, policy: TreePolicy) -> None:
    """What `outcomes` raises for this trace and policy."""
    if trace.ratio is not None:
        raise TraceError(
            "this trace is of the rejection rule (it records ratio), trees are replayed on greedy and coupled traces: use one"
        )
    if policy.kind in ("dynamic", "beam"):
        held, what = (
            (trace.order, "order of dynamic trees")
            if policy.kind == "dynamic"
            else (trace.beam, "beam search")
        )
        if held is None:
            raise TraceError(f"this trace records no {what}: record it with one")
    elif policy.kind != "planned":
        if trace.rank is None:
            raise TraceError(
                "this trace records no rank, which trees and CAPE's sets need: record it again"
            )
        if (
            not trace.meta.features
            and (trace.rank == 255).any()
            and not ((trace.rank > 0) & (trace.rank < 255)).any()
        ):
            raise TraceError(
                f"drafter {trace.meta.drafter!r} ranks only the one token that it proposes: a tree has none to branch to"
            )
    if policy.kind == "static":
        policy.tree.within(trace.K)
    if policy.kind == "planned" and len(policy.plan[0]) != trace.rows:
        raise PolicyError(
            f"{policy.name} was planned for {len(policy.plan[0])} rows, the trace has {trace.rows}: plan it for this one"
        )
    if policy.longest(trace.K) > trace.K:
        raise PolicyError(
            f"{policy.name} drafts chains of {policy.k}, here drafts reach {trace.K}: lower k, or record deeper"
        )
    trace.features(policy.reads)


def _static(trace, policy):
    cap, left = draft_room(trace)
    tree = policy.tree
    cuts = [tree.cut(level) for level in range(tree.levels + 1)]
    levels = np.minimum(cap, tree.levels)
    nodes, rows = (
        np.array(each, np.int64)[levels]
        for each in ([len(cut) for cut in cuts], [cut.rows for cut in cuts])
    )
    child = np.zeros((len(tree) + 1, 256), np.int64)  # by row and rank; 0: none
    child[list(tree.parent), list(tree.rank)] = np.arange(1, len(tree) + 1)
    at, accepted = np.zeros(trace.rows, np.int64), np.zeros(trace.rows, np.int64)
    going, reach = np.ones(trace.rows, bool), np.minimum(levels, left)
    for j in range(tree.levels):
        at = child[at, trace.rank[:, j]]
        going &= (at > 0) & (j < reach)
        accepted += going
    return Outcome(levels, nodes, rows, accepted, accepted)


def _dynamic(trace, policy):
    cap, left = draft_room(trace)
    width, deepest = trace.meta.tree
    levels = np.minimum(cap, deepest) if policy.nodes else np.zeros_like(cap)
    # one row offers `width` nodes, then each of `width` rows as many
    rows = np.where(levels > 0, 1 + (levels - 1) * width, 0)
    nodes = np.minimum(rows * width, policy.nodes)
    inside = (trace.order < policy.nodes) & (np.arange(trace.K) < np.minimum(levels, left)[:, None])
    accepted = np.logical_and.accumulate(inside, axis=1).sum(axis=1)
    return Outcome(levels, nodes, rows, accepted, accepted)


def _beam(trace, policy):
    cap, left = draft_room(trace)
    width, deepest = trace.meta.tree
    levels = np.minimum(cap, deepest)
    rows = np.where(levels > 0, 1 + (levels - 1) * width, 0)
    held, nodes = trace.beam.astype(np.int64).T
    return Outcome(levels, nodes, rows, np.minimum(held, left), np.minimum(held, left))


def sibling_counts(confidence, sets: str | int) -> np.ndarray:
    """How many siblings CAPE gives to chain tokens of this confidence, int64 in its shape.

    'section' (section 4.2): 7, 5, 3, 1 for a confidence in (0, .3], (.3, .6], (.6, .8], (.8, 1]. 'appendix' (Appendix A) prints them with
    the token itself, 8, 8, 8, 6, 6, 6, 4, 4, 2, 2 by floor(10 p): less one, the same numbers over [0, .3), [.3, .6), [.6, .8), [.8, 1],
    where p = 1, behind the end as printed, is put into the last bin. A number: that many, whatever the confidence.
    """
    if not isinstance(sets, str):
        return np.full(np.shape(confidence), sets, np.int64)
    return np.array(WIDTHS)[
        np.searchsorted(EDGES, confidence, side="left" if sets == "section" else "right")
    ]


def _cape(trace, policy):
    cap, left = draft_room(trace)
    slot = np.arange(trace.K)
    k = np.minimum(np.minimum(cap, trace.depth), policy.longest(trace.K))
    shown = np.zeros((trace.rows, trace.K))
    for name in policy.reads:
        shown = decode(
            trace.feature[:, :, trace.features((name,))[0]], table(dict(trace.meta.features)[name])
        )
    wanted = np.where(slot < k[:, None], sibling_counts(shown, policy.sets), 0)
    before = wanted.cumsum(axis=1) - wanted
    given = np.clip((MAX_SUBMITTED - k)[:, None] - before, 0, wanted)
    run, row = np.minimum(trace.run, k), np.arange(trace.rows)
    at = np.minimum(run, trace.K - 1)
    saved = (run < np.minimum(k, left)) & (trace.rank[row, at] <= given[row, at])
    # Behind an accepted sibling the drafter has read the chain before it, and owes it alone.
    owed = np.where((run == k) | saved, 1, 0)
    return Outcome(k, k + given.sum(axis=1), k, run + saved, owed)

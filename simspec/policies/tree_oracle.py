"""The clairvoyant choice of trees, by dynamic programming."""

import numpy as np

from simspec.compile_cache import cached_njit
from simspec.cost import CostModel
from simspec.deferred_policy import DeferredPolicy
from simspec.policy import PolicyError
from simspec.rank_acceptance import rank_acceptance
from simspec.trace import Trace
from simspec.tree import MAX_NODES
from simspec.tree_outcomes import Outcome, outcomes
from simspec.tree_policy import TreePolicy
from simspec.tree_search import sequoia_trees
from simspec.tree_shapes import chain_tree


def _tree_oracle(trace: Trace, cost: CostModel) -> TreePolicy:
    """The clairvoyant choice of a tree at each row, of least modelled time, by dynamic programming over (row, rows owed).

    V[t, b] = min of overhead + verify[0] + V[t + 1, min(b + 1, B)] and, over the trees, overhead + draft[levels] + node (rows - levels) +
    verify[nodes] + catch_up[b] + V[t + a + 1, min(a, B)], a what the text has of the tree; V = 0 behind the text. The trees are chains
    and `sequoia_trees` of this trace's own ranks, cut at every depth, and, where `order` is recorded, its first 1 .. 63 nodes; no more than
    the costs price. A lower bound on the time of any schedule over these trees, and of no other. Ties go to plain decoding, then
    to fewer accepted tokens.
    """
    shapes = [chain_tree(k) for k in range(1, min(trace.K, cost.K, cost.nodes) + 1)]
    shapes += [
        tree.cut(d)
        for tree in sequoia_trees(rank_acceptance(trace), min(MAX_NODES, cost.nodes))
        for d in range(1, min(trace.K, cost.K) + 1)
    ]
    options = [
        TreePolicy("tree_oracle", "static", tree=tree)
        for tree in dict.fromkeys(shapes)
        if len(tree)
    ]
    if trace.order is not None:
        options += [
            TreePolicy(f"dynamic_tree:{n}", "dynamic", nodes=n)
            for n in range(1, min(MAX_NODES, cost.nodes) + 1)
        ]
    plain = Outcome(*(np.zeros(trace.rows, np.int64) for _ in Outcome._fields))
    # Of all trees that come to the same accepted tokens at a row only the cheapest can be part of a best schedule.
    seconds = np.full((trace.K + 2, trace.rows), np.inf)
    kept = np.zeros((len(Outcome._fields), trace.K + 2, trace.rows), np.int64)
    seconds[0] = cost.overhead + cost.verify[0]
    for option in options:
        found = outcomes(trace, option)
        _priced_levels(option.name, found, cost)
        price = (
            cost.overhead
            + cost.draft[found.levels]
            + cost.node * (found.rows - found.levels)
            + cost.verify[found.nodes]
        )
        cheaper = np.flatnonzero(
            (found.levels > 0) & (price < seconds[found.accepted + 1, np.arange(trace.rows)])
        )
        seconds[found.accepted[cheaper] + 1, cheaper] = price[cheaper]
        kept[:, found.accepted[cheaper] + 1, cheaper] = np.stack(found)[:, cheaper]
    kept[:, 0] = np.stack(plain)
    choice = np.zeros((trace.rows, len(cost.catch_up)), np.int64)
    value = np.zeros((int(np.diff(trace.offset).max()) + 1, len(cost.catch_up)))
    _solve(trace.offset, seconds, cost.catch_up, choice, value)
    return TreePolicy("tree_oracle", "planned", plan=(choice, Outcome(*kept)))


tree_oracle = DeferredPolicy("tree_oracle", _tree_oracle, submits=MAX_NODES, clairvoyant=True)
"""The clairvoyant choice of a tree at each row."""


def _priced_levels(name, found, cost):
    if int(found.levels.max()) > cost.K:
        raise PolicyError(
            f"cost {cost.name!r} prices {cost.K} levels, {name} has {found.levels.max()}: measure further"
        )


@cached_njit
def _solve(offset, seconds, catch_up, choice, value):
    width = catch_up.shape[0]
    for s in range(offset.shape[0] - 1):
        n = offset[s + 1] - offset[s]
        value[n] = 0.0
        for pos in range(n - 1, -1, -1):
            t = offset[s] + pos
            for b in range(width):
                best_time = seconds[0, t] + value[pos + 1, min(b + 1, width - 1)]
                for a in range(seconds.shape[0] - 1):
                    time = (
                        seconds[a + 1, t]
                        + catch_up[b]
                        + value[min(pos + a + 1, n), min(a, width - 1)]
                    )
                    if time < best_time:
                        best_time = time
                        choice[t, b] = a + 1
                value[pos, b] = best_time

"""The clairvoyant choice of trees, by dynamic programming."""

import numpy as np

from simspec.cost.model import CostModel
from simspec.numerics.compile import cached_njit
from simspec.policy.policy import Array, PolicyError
from simspec.policy_kind import DeferredPolicy, PolicyKind
from simspec.trace.trace import Trace
from simspec.tree.outcomes import Outcome, outcomes
from simspec.tree.policy import TreePolicy
from simspec.tree.search import rank_acceptance, sequoia_trees
from simspec.tree.tree import MAX_NODES, Tree, chain_tree


def _plan(trace: Trace, cost: CostModel) -> TreePolicy:
    # Of all trees with the same accepted tokens at a row only the cheapest can be part of a best
    # schedule.
    seconds = np.full((trace.K + 2, trace.rows), np.inf)
    outcome = np.zeros((len(Outcome._fields), trace.K + 2, trace.rows), np.int64)
    seconds[0] = cost.overhead + cost.verify[0]
    for option in _options(trace, cost):
        result = outcomes(trace, option)
        price = _price(option.name, result, cost)
        cheaper = np.flatnonzero(
            (result.levels > 0) & (price < seconds[result.accepted + 1, np.arange(trace.rows)])
        )
        seconds[result.accepted[cheaper] + 1, cheaper] = price[cheaper]
        outcome[:, result.accepted[cheaper] + 1, cheaper] = np.stack(result)[:, cheaper]
    choice = np.zeros((trace.rows, len(cost.catch_up)), np.int64)
    value = np.zeros((int(np.diff(trace.offset).max()) + 1, len(cost.catch_up)))
    _solve(trace.offset, seconds, cost.catch_up, choice, value)
    return TreePolicy("tree_oracle", "planned", plan=(choice, Outcome(*outcome)))


tree_oracle = DeferredPolicy("tree_oracle", _plan, submits=MAX_NODES, clairvoyant=True)
"""The clairvoyant choice of a tree at each row, of least modelled time, over (row t, backlog b).

V[t, b] = min of
- overhead + verify[0] + V[t + 1, min(b + 1, B)]
- overhead + draft[levels] + node (rows - levels) + verify[nodes] + catch_up[b] + V[t + a + 1,
min(a, B)], over the trees

with a the tree's accepted tokens at t, and V = 0 after the end. The trees are chains,
`sequoia_trees` of this trace's own ranks cut at every depth, and, where `order` is recorded, its
first 1 .. 63 nodes; all within what the costs price. It is a lower bound on the time of any
schedule over these trees only. Ties go to plain decoding, then to fewer accepted tokens.
"""


def _options(trace: Trace, cost: CostModel) -> list[TreePolicy]:
    budget = min(MAX_NODES, cost.nodes)
    depths = range(1, min(trace.K, cost.K) + 1)
    shapes = [chain_tree(k) for k in range(1, min(trace.K, cost.K, cost.nodes) + 1)]
    shapes += [
        tree.cut(depth)
        for tree in sequoia_trees(rank_acceptance(trace), budget)
        for depth in depths
    ]
    options = [_static(tree) for tree in dict.fromkeys(shapes) if len(tree)]
    if trace.order is not None:
        options += [
            TreePolicy(f"dynamic_tree:{nodes}", "dynamic", nodes=nodes)
            for nodes in range(1, budget + 1)
        ]
    return options


def _static(tree: Tree) -> TreePolicy:
    return TreePolicy("tree_oracle", "static", tree=tree)


def _price(name: str, outcome: Outcome, cost: CostModel) -> np.ndarray:
    """float64[N]: seconds of the round at each row, catch-up apart; PolicyError for unpriced
    levels.
    """
    deepest = int(outcome.levels.max())
    if deepest > cost.K:
        raise PolicyError(
            f"cost {cost.name!r} prices {cost.K} levels, {name} has {deepest}: measure further"
        )
    price: np.ndarray = (
        cost.overhead
        + cost.draft[outcome.levels]
        + cost.node * (outcome.rows - outcome.levels)
        + cost.verify[outcome.nodes]
    )
    return price


@cached_njit
def _solve(offset: Array, seconds: Array, catch_up: Array, choice: Array, value: Array) -> None:
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


POLICIES = (
    PolicyKind(
        tree_oracle, "trees", "ours", "the recorded tokens",
        "the choice of trees of least time, knowing the future", examples=("tree_oracle",),
    ),
)  # fmt: skip

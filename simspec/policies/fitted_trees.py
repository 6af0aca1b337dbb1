"""Trees fitted to the ranks of a recording."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from simspec.cost.model import CostModel
from simspec.policy.arguments import check_integer
from simspec.policy.policy import PolicyError
from simspec.policy_kind import DeferredPolicy, PolicyKind
from simspec.trace.trace import Trace
from simspec.tree.policy import TreePolicy
from simspec.tree.search import best_tree, fastest_tree, medusa_like, rank_acceptance
from simspec.tree.tree import MAX_NODES, Tree, tree_of_widths

Fit = Sequence[int] | np.ndarray | None
"""Indices of the sequences that a tree is fitted to; None: all of the trace. Report on others."""


def medusa_tree(nodes: int, fit: Fit = None) -> DeferredPolicy:
    """The `medusa_like` tree of that many nodes, from each depth's rank accuracies over all rows.

    Its depth is that of the best rate at the costs.
    """
    check_integer("medusa_tree", "nodes", nodes, 0, MAX_NODES)
    return _deferred(f"medusa_tree:{nodes}", partial(_medusa, nodes, fit))


def _medusa(nodes: int, fit: Fit, trace: Trace, cost: CostModel) -> TreePolicy:
    name = f"medusa_tree:{nodes}"
    accuracy = rank_acceptance(trace, indices=fit, reached=False)
    _check_nodes(name, nodes, cost)
    trees = [
        medusa_like(accuracy[:depth], nodes) for depth in range(1, _max_depth(trace, cost) + 1)
    ]
    return TreePolicy(name, "static", tree=fastest_tree(trees, accuracy, cost, nodes))


def optimal_tree(nodes: int | None = None, fit: Fit = None) -> DeferredPolicy:
    """Sequoia's tree of that many nodes at the depth of the best rate; None: of the best number
    too.

    See `rank_acceptance` and `best_tree`.
    """
    if nodes is not None:
        check_integer("optimal_tree", "nodes", nodes, 0, MAX_NODES)
    name = "optimal_tree" if nodes is None else f"optimal_tree:{nodes}"
    return _deferred(name, partial(_optimal, nodes, fit))


def _optimal(nodes: int | None, fit: Fit, trace: Trace, cost: CostModel) -> TreePolicy:
    acceptance = rank_acceptance(trace, indices=fit)
    if nodes is None:
        return TreePolicy("optimal_tree", "static", tree=best_tree(acceptance, cost))
    name = f"optimal_tree:{nodes}"
    _check_nodes(name, nodes, cost)
    tree = best_tree(acceptance, cost, nodes, nodes) if nodes else Tree()
    return TreePolicy(name, "static", tree=tree)


def full_tree(nodes: int, fit: Fit = None) -> DeferredPolicy:
    """The full tree of at most that many nodes of the best rate, widths not growing by level."""
    check_integer("full_tree", "nodes", nodes, 1, MAX_NODES)
    return _deferred(f"full_tree:{nodes}", partial(_full, nodes, fit))


def _full(nodes: int, fit: Fit, trace: Trace, cost: CostModel) -> TreePolicy:
    name = f"full_tree:{nodes}"
    deepest, acceptance = _max_depth(trace, cost), rank_acceptance(trace, indices=fit)
    _check_nodes(name, nodes, cost)

    def shapes(widths: tuple[int, ...], last: int, used: int) -> Iterator[Tree]:
        if widths:
            yield tree_of_widths(widths)
        if len(widths) == deepest:
            return
        for width in range(1, (widths[-1] if widths else acceptance.shape[1]) + 1):
            if used + last * width <= nodes:
                yield from shapes((*widths, width), last * width, used + last * width)

    tree = fastest_tree(shapes((), 1, 0), acceptance, cost, nodes)
    return TreePolicy(name, "static", tree=tree)


def _deferred(name: str, make: "partial[TreePolicy]") -> DeferredPolicy:
    return DeferredPolicy(name, make, submits=MAX_NODES)


def _max_depth(trace: Trace, cost: CostModel) -> int:
    return min(trace.K, cost.K)


def _check_nodes(name: str, nodes: int, cost: CostModel) -> None:
    if nodes > cost.nodes:
        raise PolicyError(
            f"cost {cost.name!r} prices {cost.nodes} submitted tokens, "
            f"{name} submits {nodes}: measure with more rows"
        )


POLICIES = (
    PolicyKind(
        medusa_tree, "trees", "Medusa, Appendix", "accuracy of ranks",
        "the nodes of greatest accuracy", "nodes are required", examples=("medusa_tree:4",),
    ),
    PolicyKind(
        optimal_tree, "trees", "Sequoia", "acceptance by rank, costs",
        "the best tree by dynamic programming", "the best number of nodes",
        examples=("optimal_tree", "optimal_tree:4"),
    ),
    PolicyKind(
        full_tree, "trees", "ours", "acceptance by rank, costs",
        "the best full tree, widths not growing", "nodes are required", examples=("full_tree:4",),
    ),
)  # fmt: skip

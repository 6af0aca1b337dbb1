"""Trees fitted to the ranks of a recording."""

from functools import partial

from simspec.deferred_policy import DeferredPolicy
from simspec.policy import PolicyError
from simspec.rank_acceptance import rank_acceptance
from simspec.tree import MAX_NODES, Tree
from simspec.tree_policy import TreePolicy, check_integer
from simspec.tree_search import best_tree, fastest_tree, medusa_like
from simspec.tree_shapes import tree_of_widths


def medusa_tree(nodes: int, fit=None) -> DeferredPolicy:
    """(trace, cost) -> TreePolicy: the `medusa_like` tree of that many nodes, from each depth's rank accuracies over all rows.

    fit: indices of the sequences to count, default all of the trace; the depth is that of the best rate at the costs.
    """
    check_integer("medusa_tree", "nodes", nodes, 0, MAX_NODES)
    return _deferred(f"medusa_tree:{nodes}", partial(_medusa, nodes, fit))


def _medusa(nodes, fit, trace, cost):
    accuracy = rank_acceptance(trace, indices=fit, reached=False)
    _priceable(f"medusa_tree:{nodes}", nodes, cost)
    trees = [medusa_like(accuracy[:d], nodes) for d in _depths(trace, cost)]
    return TreePolicy(
        f"medusa_tree:{nodes}", "static", tree=fastest_tree(trees, accuracy, cost, nodes)
    )


def optimal_tree(nodes: int | None = None, fit=None) -> DeferredPolicy:
    """(trace, cost) -> TreePolicy: Sequoia's tree of that many nodes at the depth of the best rate, or (None) of the best number too.

    Made from the ranks of the trace's own sequences `fit` (indices, default all), see `rank_acceptance` and `best_tree`: report on others.
    """
    if nodes is not None:
        check_integer("optimal_tree", "nodes", nodes, 0, MAX_NODES)
    name = "optimal_tree" if nodes is None else f"optimal_tree:{nodes}"
    return _deferred(name, partial(_optimal, nodes, fit))


def _optimal(nodes, fit, trace, cost):
    acceptance = rank_acceptance(trace, indices=fit)
    if nodes is None:
        return TreePolicy("optimal_tree", "static", tree=best_tree(acceptance, cost))
    _priceable(f"optimal_tree:{nodes}", nodes, cost)
    return TreePolicy(
        f"optimal_tree:{nodes}",
        "static",
        tree=best_tree(acceptance, cost, nodes, nodes) if nodes else Tree(),
    )


def full_tree(nodes: int, fit=None) -> DeferredPolicy:
    """(trace, cost) -> TreePolicy: the full tree of that many nodes, widths not growing by level, of the best rate; see `optimal_tree`."""
    check_integer("full_tree", "nodes", nodes, 1, MAX_NODES)
    return _deferred(f"full_tree:{nodes}", partial(_full, nodes, fit))


def _full(nodes, fit, trace, cost):
    deepest, acceptance = len(_depths(trace, cost)), rank_acceptance(trace, indices=fit)
    _priceable(f"full_tree:{nodes}", nodes, cost)

    def shapes(widths, last, used):
        if widths:
            yield tree_of_widths(widths)
        for width in (
            range(1, (widths[-1] if widths else acceptance.shape[1]) + 1)
            if len(widths) < deepest
            else ()
        ):
            if used + last * width <= nodes:
                yield from shapes((*widths, width), last * width, used + last * width)

    return TreePolicy(
        f"full_tree:{nodes}", "static", tree=fastest_tree(shapes((), 1, 0), acceptance, cost, nodes)
    )


def _deferred(name, make):
    return DeferredPolicy(name, make, submits=MAX_NODES)


def _depths(trace, cost):
    return range(1, min(trace.K, cost.K) + 1)


def _priceable(name, nodes, cost):
    if nodes > cost.nodes:
        raise PolicyError(
            f"cost {cost.name!r} prices {cost.nodes} submitted tokens, {name} submits {nodes}: measure with more rows"
        )

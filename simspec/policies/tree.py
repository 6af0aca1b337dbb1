"""Policies that submit trees, by name: shapes that are given, made from ranks or from the order, CAPE's sets, the clairvoyant choice."""

from functools import partial
from pathlib import Path

import numpy as np

from simspec.compile_cache import cached_njit
from simspec.cost import CostModel
from simspec.deferred_policy import DeferredPolicy
from simspec.policy import PolicyError
from simspec.trace import Trace
from simspec.tree import (
    MOST,
    Tree,
    best,
    chain_tree,
    family,
    fastest,
    full,
    load_tree,
    medusa_like,
    rank_acceptance,
)
from simspec.tree_policy import Outcome, TreePolicy, check_whole, outcomes


def static(shape: str | int) -> TreePolicy:
    """One tree for every round: a shape such as 4x2x1 (children of a node by level), or a tree's .json file."""
    name = f"static:{shape}"
    if isinstance(shape, str) and (shape.endswith(".json") or Path(shape).is_file()):
        return TreePolicy(name, "static", tree=load_tree(shape))
    try:
        wide = [int(part) for part in str(shape).split("x")]
    except ValueError:
        raise PolicyError(
            f"{name}: {shape!r} is no shape and no file, expected widths such as 4x2x1, or a tree's .json file"
        ) from None
    return TreePolicy(name, "static", tree=full(wide))


def medusa_tree(nodes: int, fit=None) -> DeferredPolicy:
    """(trace, cost) -> TreePolicy: the `medusa_like` tree of that many nodes, from each depth's rank accuracies over all rows.

    fit: indices of the sequences to count, default all of the trace; the depth is that of the best rate at the costs.
    """
    check_whole("medusa_tree", "nodes", nodes, 0, MOST)
    return _deferred(f"medusa_tree:{nodes}", partial(_medusa, nodes, fit))


def _medusa(nodes, fit, trace, cost):
    accuracy = rank_acceptance(trace, indices=fit, reached=False)
    _priceable(f"medusa_tree:{nodes}", nodes, cost)
    trees = [medusa_like(accuracy[:d], nodes) for d in _depths(trace, cost)]
    return TreePolicy(f"medusa_tree:{nodes}", "static", tree=fastest(trees, accuracy, cost, nodes))


def optimal_tree(nodes: int | None = None, fit=None) -> DeferredPolicy:
    """(trace, cost) -> TreePolicy: Sequoia's tree of that many nodes at the depth of the best rate, or (None) of the best number too.

    Made from the ranks of the trace's own sequences `fit` (indices, default all), see `rank_acceptance` and `best`: report on others.
    """
    if nodes is not None:
        check_whole("optimal_tree", "nodes", nodes, 0, MOST)
    name = "optimal_tree" if nodes is None else f"optimal_tree:{nodes}"
    return _deferred(name, partial(_optimal, nodes, fit))


def _optimal(nodes, fit, trace, cost):
    acceptance = rank_acceptance(trace, indices=fit)
    if nodes is None:
        return TreePolicy("optimal_tree", "static", tree=best(acceptance, cost))
    _priceable(f"optimal_tree:{nodes}", nodes, cost)
    return TreePolicy(
        f"optimal_tree:{nodes}",
        "static",
        tree=best(acceptance, cost, nodes, nodes) if nodes else Tree(),
    )


def full_tree(nodes: int, fit=None) -> DeferredPolicy:
    """(trace, cost) -> TreePolicy: the full tree of that many nodes, widths not growing by level, of the best rate; see `optimal_tree`."""
    check_whole("full_tree", "nodes", nodes, 1, MOST)
    return _deferred(f"full_tree:{nodes}", partial(_full, nodes, fit))


def _full(nodes, fit, trace, cost):
    deepest, acceptance = len(_depths(trace, cost)), rank_acceptance(trace, indices=fit)
    _priceable(f"full_tree:{nodes}", nodes, cost)

    def shapes(widths, last, used):
        if widths:
            yield full(widths)
        for width in (
            range(1, (widths[-1] if widths else acceptance.shape[1]) + 1)
            if len(widths) < deepest
            else ()
        ):
            if used + last * width <= nodes:
                yield from shapes((*widths, width), last * width, used + last * width)

    return TreePolicy(
        f"full_tree:{nodes}", "static", tree=fastest(shapes((), 1, 0), acceptance, cost, nodes)
    )


def _deferred(name, make):
    return DeferredPolicy(name, make, submits=MOST)


def _depths(trace, cost):
    return range(1, min(trace.K, cost.K) + 1)


def dynamic_tree(nodes: int) -> TreePolicy:
    """The first `nodes` of a dynamic tree in the order of cumulative confidence (EAGLE-2's rule), as wide and deep as was recorded."""
    return TreePolicy(f"dynamic_tree:{nodes}", "dynamic", nodes=nodes)


def beams() -> TreePolicy:
    """Beam search as wide and deep as was recorded: the hypotheses that it ends with, as one tree (GLIDE Table 3's comparison)."""
    return TreePolicy("beams", "beam")


def cape(sets: str = "section", k: int | None = None) -> TreePolicy:
    """CAPE (GLIDE section 4.2): a chain of k tokens, each with siblings by its confidence, see `widths`; at most 32 submitted.

    The chain is kept whole, then the sets are filled from the first slot on, each by rank. k None: the trace's K, at most 32.
    """
    if not isinstance(sets, str):
        raise PolicyError(
            f"cape: the table of widths is {sets!r}, expected section or appendix (of one width: sets:{sets})"
        )
    return TreePolicy(_told(f"cape:{sets}", k), "cape", k=k, sets=sets)


def sets(width: int, k: int | None = None) -> TreePolicy:
    """A chain of k tokens with `width` siblings each, 0 for none, at most 32 submitted: what CAPE is held against."""
    return TreePolicy(_told(f"sets:{width}", k), "cape", k=k, sets=width)


def _told(name, k):
    return name if k is None else f"{name},k={k}"


def _tree_oracle(trace: Trace, cost: CostModel) -> TreePolicy:
    """The clairvoyant choice of a tree at each row, of least modelled time, by dynamic programming over (row, rows owed).

    V[t, b] = min of overhead + verify[0] + V[t + 1, min(b + 1, B)] and, over the trees, overhead + draft[levels] + node (rows - levels) +
    verify[nodes] + catch_up[b] + V[t + a + 1, min(a, B)], a what the text has of the tree; V = 0 behind the text. The trees are chains
    and `family` of this trace's own ranks, cut at every depth, and, where `order` is recorded, its first 1 .. 63 nodes; no more than
    the costs price. A lower bound on the time of any schedule over these trees, and of no other. Ties go to plain decoding, then
    to fewer accepted tokens.
    """
    shapes = [chain_tree(k) for k in range(1, min(trace.K, cost.K, cost.nodes) + 1)]
    shapes += [
        tree.cut(d)
        for tree in family(rank_acceptance(trace), min(MOST, cost.nodes))
        for d in _depths(trace, cost)
    ]
    options = [
        TreePolicy("tree_oracle", "static", tree=tree)
        for tree in dict.fromkeys(shapes)
        if len(tree)
    ]
    if trace.order is not None:
        options += [dynamic_tree(n) for n in range(1, min(MOST, cost.nodes) + 1)]
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


tree_oracle = DeferredPolicy("tree_oracle", _tree_oracle, submits=MOST, clairvoyant=True)
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


def _priceable(name, nodes, cost):
    if nodes > cost.nodes:
        raise PolicyError(
            f"cost {cost.name!r} prices {cost.nodes} submitted tokens, {name} submits {nodes}: measure with more rows"
        )

"""Policies that submit trees: one shape, dynamic trees by cumulative confidence, CAPE's sets, and the clairvoyant choice of trees."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit

from simspec.cost import CostModel
from simspec.grid import decode, table
from simspec.policy import PolicyError
from simspec.trace import Trace, TraceError
from simspec.tree import MOST, Tree, best, chain_tree, family, fastest, full, load_tree, medusa_like, rank_acceptance, room

KINDS = ("static", "dynamic", "cape", "planned")
SUBMITTED = 32
"""Tokens that a round of CAPE submits at most."""
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


@dataclass(frozen=True)
class TreePolicy:
    """What to submit in each round; `simspec.tree_replay.replay_tree` replays it, `outcomes` says what it comes to.

    | field | type             | of which kind it is a parameter, and its meaning                                            |
    | ----- | ---------------- | ----------------------------------------------------------------------------------------- |
    | name  | str              | label in tables                                                                           |
    | kind  | str              | static, dynamic, cape, or planned: another choice at each row, made for one trace           |
    | tree  | Tree             | static: the shape, cut at the row's cap                                                   |
    | nodes | int, 0..63       | dynamic: the first so many in the order of cumulative confidence (EAGLE-2's rule)             |
    | k     | int or None      | cape: length of the chain, at most 32; None: the trace's K                                  |
    | sets  | str or int, 0..31 | cape: 'section' or 'appendix', which table of widths; or one width for every slot, 0: no set |
    | plan  | (choice, Outcome) | planned: choice int64[N, B] of row and rows owed, into outcomes of shape [C, N]              |

    PolicyError, one line, for what is outside these.
    """

    name: str
    kind: str
    tree: Tree = Tree()
    nodes: int = 0
    k: int | None = None
    sets: str | int = 0
    plan: tuple = field(default=(), compare=False, repr=False)
    random = False

    def __post_init__(self):
        if self.kind not in KINDS:
            raise PolicyError(f"tree policy {self.name!r}: kind is {self.kind!r}, expected one of {', '.join(KINDS)}")
        if not isinstance(self.tree, Tree):
            raise PolicyError(f"{self.name}: tree is {self.tree!r}, expected a Tree")
        _whole(self.name, "nodes", self.nodes, 0, MOST)
        if self.k is not None:
            _whole(self.name, "k", self.k, 0, SUBMITTED)
        if isinstance(self.sets, str):
            if self.sets not in ("section", "appendix"):
                raise PolicyError(f"{self.name}: the table of widths is {self.sets!r}, expected section or appendix")
        else:
            _whole(self.name, "width", self.sets, 0, SUBMITTED - 1)

    @property
    def reads(self) -> tuple:
        """Features that it is shown, and pays `CostModel.feature` for."""
        return ("confidence",) if self.kind == "cape" and isinstance(self.sets, str) else ()

    def longest(self, K: int) -> int:
        """The longest chain that the row's `depth` may cut where drafts reach K: 0 but for CAPE, whose chain is the greedy one."""
        return (min(K, SUBMITTED) if self.k is None else self.k) if self.kind == "cape" else 0


def outcomes(trace: Trace, policy: TreePolicy) -> Outcome:
    """What each row's round would come to under this policy, exactly; [C, N] each if it is planned.

    A node of a static tree at slot j is accepted while the ranks rank[t, 0] .. rank[t, j] lead to a node of the tree, of a dynamic one
    while order[t, j] < nodes; none is drafted below min(K, budget left - 1), and `depth` cuts CAPE's chain only. TraceError for a trace
    that lacks what this takes, TreeError for a tree deeper than K, PolicyError for a chain longer than K.
    """
    check_trace(trace, policy)
    if policy.kind == "planned":
        return policy.plan[1]
    return {"static": _static, "dynamic": _dynamic, "cape": _cape}[policy.kind](trace, policy)


def check_trace(trace: Trace, policy: TreePolicy) -> None:
    """What `outcomes` raises for this trace and policy."""
    if trace.ratio is not None:
        raise TraceError("this trace records ratio, for the rejection rule, under which trees are not replayed: use a greedy or coupled trace")
    if policy.kind == "dynamic":
        if trace.order is None:
            raise TraceError("this trace records no order of dynamic trees: record it with one")
    elif policy.kind != "planned":
        if trace.rank is None:
            raise TraceError("this trace records no rank, which trees and CAPE's sets need: record it again")
        if not trace.meta.features and (trace.rank == 255).any() and not ((trace.rank > 0) & (trace.rank < 255)).any():
            raise TraceError(f"drafter {trace.meta.drafter!r} ranks nothing but the one token that it proposes: a tree has none to branch to")
    if policy.kind == "static":
        policy.tree.within(trace.K)
    if policy.kind == "planned" and policy.plan[1].levels.shape[1] != trace.rows:
        raise PolicyError(f"{policy.name} was planned for {policy.plan[1].levels.shape[1]} rows, the trace has {trace.rows}: plan it for this one")
    if policy.longest(trace.K) > trace.K:
        raise PolicyError(f"{policy.name} drafts chains of {policy.k}, here drafts reach {trace.K}: lower k, or record deeper")
    trace.features(policy.reads)


def _static(trace, policy):
    cap, left = room(trace)
    tree = policy.tree
    cuts = [tree.cut(level) for level in range(tree.levels + 1)]
    levels = np.minimum(cap, tree.levels)
    nodes, rows = (np.array(each, np.int64)[levels] for each in ([len(cut) for cut in cuts], [cut.rows for cut in cuts]))
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
    cap, left = room(trace)
    width, deepest = trace.meta.tree
    levels = np.minimum(cap, deepest) if policy.nodes else np.zeros_like(cap)
    # one row offers `width` nodes, then each of `width` rows as many
    rows = np.where(levels > 0, 1 + (levels - 1) * width, 0)
    nodes = np.minimum(rows * width, policy.nodes)
    inside = (trace.order < policy.nodes) & (np.arange(trace.K) < np.minimum(levels, left)[:, None])
    accepted = np.logical_and.accumulate(inside, axis=1).sum(axis=1)
    return Outcome(levels, nodes, rows, accepted, accepted)


def widths(confidence, sets: str | int) -> np.ndarray:
    """How many siblings CAPE gives to chain tokens of this confidence, int64 in its shape.

    'section' (section 4.2): 7, 5, 3, 1 for a confidence in (0, .3], (.3, .6], (.6, .8], (.8, 1]. 'appendix' (Appendix A) prints them with
    the token itself, 8, 8, 8, 6, 6, 6, 4, 4, 2, 2 by floor(10 p): less one, the same numbers over [0, .3), [.3, .6), [.6, .8), [.8, 1],
    where p = 1, behind the end as printed, is put into the last bin. A number: that many, whatever the confidence.
    """
    if not isinstance(sets, str):
        return np.full(np.shape(confidence), sets, np.int64)
    return np.array(WIDTHS)[np.searchsorted(EDGES, confidence, side="left" if sets == "section" else "right")]


def _cape(trace, policy):
    cap, left = room(trace)
    slot = np.arange(trace.K)
    k = np.minimum(np.minimum(cap, trace.depth), policy.longest(trace.K))
    shown = np.zeros((trace.rows, trace.K))
    for name in policy.reads:
        shown = decode(trace.feature[:, :, trace.features((name,))[0]], table(dict(trace.meta.features)[name]))
    wanted = np.where(slot < k[:, None], widths(shown, policy.sets), 0)
    before = wanted.cumsum(axis=1) - wanted
    given = np.clip((SUBMITTED - k)[:, None] - before, 0, wanted)
    run, row = np.minimum(trace.run, k), np.arange(trace.rows)
    at = np.minimum(run, trace.K - 1)
    saved = (run < np.minimum(k, left)) & (trace.rank[row, at] <= given[row, at])
    # Behind an accepted sibling the drafter has read the chain before it, and owes it alone.
    owed = np.where((run == k) | saved, 1, 0)
    return Outcome(k, k + given.sum(axis=1), k, run + saved, owed)


def static(shape: str | int) -> TreePolicy:
    """One tree for every round: a shape such as 4x2x1 (children of a node by level), or a tree's .json file."""
    name = f"static:{shape}"
    if isinstance(shape, str) and (shape.endswith(".json") or Path(shape).is_file()):
        return TreePolicy(name, "static", tree=load_tree(shape))
    try:
        wide = [int(part) for part in str(shape).split("x")]
    except ValueError:
        raise PolicyError(f"{name}: {shape!r} is no shape and no file, expected widths such as 4x2x1, or a tree's .json file") from None
    return TreePolicy(name, "static", tree=full(wide))


def medusa_tree(nodes: int, fit=None) -> Callable:
    """(trace, cost) -> TreePolicy: the `medusa_like` tree of that many nodes, from each depth's rank accuracies over all rows.

    fit: indices of the sequences to count, default all of the trace; the depth is that of the best rate at the costs, as for `optimal_tree`.
    """
    _whole("medusa_tree", "nodes", nodes, 0, MOST)
    return partial(_medusa, nodes, fit)


def _medusa(nodes, fit, trace, cost):
    accuracy = rank_acceptance(trace, indices=fit, reached=False)
    _priceable(f"medusa_tree:{nodes}", nodes, cost)
    trees = [medusa_like(accuracy[:d], nodes) for d in _depths(trace, cost)]
    return TreePolicy(f"medusa_tree:{nodes}", "static", tree=fastest(trees, accuracy, cost, nodes))


def optimal_tree(nodes: int | None = None, fit=None) -> Callable:
    """(trace, cost) -> TreePolicy: Sequoia's tree of that many nodes at the depth of the best rate, or (None) of the best number too.

    Made from the ranks of the trace's own sequences `fit` (indices, default all), see `rank_acceptance` and `best`: report on others.
    """
    if nodes is not None:
        _whole("optimal_tree", "nodes", nodes, 0, MOST)
    return partial(_optimal, nodes, fit)


def _optimal(nodes, fit, trace, cost):
    acceptance = rank_acceptance(trace, indices=fit)
    if nodes is None:
        return TreePolicy("optimal_tree", "static", tree=best(acceptance, cost))
    _priceable(f"optimal_tree:{nodes}", nodes, cost)
    return TreePolicy(f"optimal_tree:{nodes}", "static", tree=best(acceptance, cost, nodes, nodes) if nodes else Tree())


def full_tree(nodes: int, fit=None) -> Callable:
    """(trace, cost) -> TreePolicy: the full tree of that many nodes, widths not growing by level, of the best rate; see `optimal_tree`."""
    _whole("full_tree", "nodes", nodes, 1, MOST)
    return partial(_full, nodes, fit)


def _full(nodes, fit, trace, cost):
    deepest, acceptance = len(_depths(trace, cost)), rank_acceptance(trace, indices=fit)
    _priceable(f"full_tree:{nodes}", nodes, cost)

    def shapes(widths, last, used):
        if widths:
            yield full(widths)
        for width in range(1, (widths[-1] if widths else acceptance.shape[1]) + 1) if len(widths) < deepest else ():
            if used + last * width <= nodes:
                yield from shapes((*widths, width), last * width, used + last * width)

    return TreePolicy(f"full_tree:{nodes}", "static", tree=fastest(shapes((), 1, 0), acceptance, cost, nodes))


def _depths(trace, cost):
    return range(1, min(trace.K, cost.K) + 1)


def dynamic_tree(nodes: int) -> TreePolicy:
    """The first `nodes` of a dynamic tree in the order of cumulative confidence (EAGLE-2's rule), as wide and deep as was recorded."""
    return TreePolicy(f"dynamic_tree:{nodes}", "dynamic", nodes=nodes)


def cape(sets: str = "section", k: int | None = None) -> TreePolicy:
    """CAPE (GLIDE section 4.2): a chain of k tokens, each with siblings by its confidence, see `widths`; at most 32 submitted.

    The chain is kept whole, then the sets are filled from the first slot on, each by rank. k None: the trace's K, at most 32.
    """
    if not isinstance(sets, str):
        raise PolicyError(f"cape: the table of widths is {sets!r}, expected section or appendix (of one width: sets:{sets})")
    return TreePolicy(_told(f"cape:{sets}", k), "cape", k=k, sets=sets)


def sets(width: int, k: int | None = None) -> TreePolicy:
    """A chain of k tokens with `width` siblings each, 0 for none, at most 32 submitted: what CAPE is held against."""
    return TreePolicy(_told(f"sets:{width}", k), "cape", k=k, sets=width)


def _told(name, k):
    return name if k is None else f"{name},k={k}"


def tree_oracle(trace: Trace, cost: CostModel) -> TreePolicy:
    """The clairvoyant choice of a tree at each row, of least modelled time, by dynamic programming over (row, rows owed).

    V[t, b] = min of overhead + verify[0] + V[t + 1, min(b + 1, B)] and, over the trees, overhead + draft[levels] + node (rows - levels) +
    verify[nodes] + catch_up[b] + V[t + a + 1, min(a, B)], a what the text has of the tree; V = 0 behind the text. The trees are, where
    `order` is recorded, its first 1 .. 63 nodes; else chains and `family` of this trace's own ranks, cut at every depth; always no more than
    the costs price. A lower bound on the time of any schedule over these trees, and of no other. Ties go to plain decoding, then shorter.
    """
    if trace.order is not None:
        options = [dynamic_tree(n) for n in range(1, min(MOST, cost.nodes) + 1)]
    else:
        acceptance = rank_acceptance(trace)
        shapes = [chain_tree(k) for k in range(1, min(trace.K, cost.K, cost.nodes) + 1)]
        shapes += [tree.cut(d) for tree in family(acceptance, min(MOST, cost.nodes)) for d in _depths(trace, cost)]
        options = [TreePolicy("tree_oracle", "static", tree=tree) for tree in dict.fromkeys(shapes) if len(tree)]
    plain = Outcome(*(np.zeros(trace.rows, np.int64) for _ in Outcome._fields))
    # Of all trees that come to the same accepted tokens at a row only the cheapest can be part of a best schedule.
    seconds = np.full((trace.K + 2, trace.rows), np.inf)
    kept = np.zeros((len(Outcome._fields), trace.K + 2, trace.rows), np.int64)
    seconds[0] = cost.overhead + cost.verify[0]
    for option in options:
        found = outcomes(trace, option)
        _priced_levels(option.name, found, cost)
        price = cost.overhead + cost.draft[found.levels] + cost.node * (found.rows - found.levels) + cost.verify[found.nodes]
        cheaper = np.flatnonzero((found.levels > 0) & (price < seconds[found.accepted + 1, np.arange(trace.rows)]))
        seconds[found.accepted[cheaper] + 1, cheaper] = price[cheaper]
        kept[:, found.accepted[cheaper] + 1, cheaper] = np.stack(found)[:, cheaper]
    kept[:, 0] = np.stack(plain)
    choice = np.zeros((trace.rows, len(cost.catch_up)), np.int64)
    value = np.zeros((int(np.diff(trace.offset).max()) + 1, len(cost.catch_up)))
    _solve(trace.offset, seconds, cost.catch_up, choice, value)
    return TreePolicy("tree_oracle", "planned", plan=(choice, Outcome(*kept)))


def _priced_levels(name, found, cost):
    if int(found.levels.max()) > cost.K:
        raise PolicyError(f"cost {cost.name!r} prices {cost.K} levels, {name} has {found.levels.max()}: measure further")


@njit(cache=True)
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
                    time = seconds[a + 1, t] + catch_up[b] + value[min(pos + a + 1, n), min(a, width - 1)]
                    if time < best_time:
                        best_time = time
                        choice[t, b] = a + 1
                value[pos, b] = best_time


def _priceable(name, nodes, cost):
    if nodes > cost.nodes:
        raise PolicyError(f"cost {cost.name!r} prices {cost.nodes} submitted tokens, {name} submits {nodes}: measure with more rows")


def _whole(name, what, value, low, high):
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PolicyError(f"{name}: {what} is {value!r}, expected an integer in {low}..{high}")

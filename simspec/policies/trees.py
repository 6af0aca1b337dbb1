"""Trees: of a given shape, dynamic ones and beams, CAPE, fitted to ranks, and the best choice."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
from msgspec import Meta

from simspec.cost.model import CostModel
from simspec.numerics.compile import cached_njit
from simspec.policy.policy import Array, PolicyError, check_argument
from simspec.policy_kind import DeferredPolicy, PolicyKind
from simspec.trace.trace import Trace
from simspec.tree.replay import Outcome, outcomes
from simspec.tree.search import (
    best_tree,
    fastest_tree,
    medusa_like,
    rank_acceptance,
    sequoia_trees,
)  # fmt: skip
from simspec.tree.tree import (
    MAX_NODES,
    PUBLISHED,
    Tree,
    TreePolicy,
    chain_tree,
    load_tree,
    published_tree,
    tree_of_widths,
)  # fmt: skip


def static(shape: str | int) -> TreePolicy:
    """One tree for every round: children of a node by level, such as 4x2x1, a published tree's
    name (eagle-25, medusa-63), or a tree's .json file.
    """
    name = f"static:{shape}"
    if isinstance(shape, str) and shape in PUBLISHED:
        return TreePolicy(name, "static", tree=published_tree(shape))
    if isinstance(shape, str) and (shape.endswith(".json") or Path(shape).is_file()):
        return TreePolicy(name, "static", tree=load_tree(shape))
    try:
        widths = [int(width) for width in str(shape).split("x")]
    except ValueError:
        raise PolicyError(
            f"{name}: {shape!r} is no shape and no file, "
            f"expected widths such as 4x2x1, {' or '.join(PUBLISHED)}, or a tree's .json file"
        ) from None
    return TreePolicy(name, "static", tree=tree_of_widths(widths))


def dynamic_tree(nodes: int | str) -> TreePolicy:
    """The first `nodes` of the recorded dynamic tree in the order of cumulative confidence
    (EAGLE-2); 'beams': the final hypotheses of the recorded beam search, as one tree (the
    comparison of GLIDE Table 3).
    """
    if nodes == "beams":
        return TreePolicy("dynamic_tree:beams", "beam")
    return TreePolicy(f"dynamic_tree:{nodes}", "dynamic", nodes=nodes)  # type: ignore[arg-type]


def cape(sets: str | int = "section", k: int | None = None) -> TreePolicy:
    """CAPE (GLIDE section 4.2): a chain of k tokens, each with siblings by its confidence, see
    `sibling_counts`; a number instead of a table of widths: as many siblings everywhere, CAPE's
    baseline.

    At most 32 tokens are submitted: the whole chain, then the sets from the first slot on, each by
    rank. k None: the trace's K, at most 32.
    """
    name = f"cape:{sets}" if k is None else f"cape:{sets},k={k}"
    return TreePolicy(name, "cape", k=k, sets=sets)


Fit = Sequence[int] | np.ndarray | None
"""Indices of the sequences that a tree is fitted to; None: all of the trace. Report on others."""


Rule = Literal["sequoia", "medusa", "full"]
RULES = get_args(Rule)


def optimal_tree(
    nodes: int | None = None, rule: str = "sequoia", fit: Fit = None
) -> DeferredPolicy:
    """The tree of that many nodes at the depth of the best rate; None: of the best number too.

    | rule | tree |
    | --- | --- |
    | sequoia | of the most expected tokens, see `rank_acceptance` and `best_tree` |
    | medusa | `medusa_like` from each depth's rank accuracies over all rows |
    | full | the full tree of at most that many nodes, widths not growing by level |

    Rules other than sequoia need `nodes`. PolicyError for values outside these.
    """
    check_argument("optimal_tree", "rule", rule, Rule)
    if nodes is not None or rule != "sequoia":
        kind = Annotated[int, Meta(ge=int(rule == "full"), le=MAX_NODES)]
        check_argument("optimal_tree", "nodes", nodes, kind)
    stated = [*([] if nodes is None else [str(nodes)]), *([] if rule == "sequoia" else [rule])]
    name = ":".join(["optimal_tree", *([",".join(stated)] if stated else [])])
    return DeferredPolicy(name, partial(_fitted, name, nodes, rule, fit), submits=MAX_NODES)


def _fitted(
    name: str, nodes: int | None, rule: str, fit: Fit, trace: Trace, cost: CostModel
) -> TreePolicy:
    acceptance = rank_acceptance(trace, indices=fit, reached=rule != "medusa")
    if nodes is None:
        return TreePolicy(name, "static", tree=best_tree(acceptance, cost))
    if nodes > cost.nodes:
        raise PolicyError(
            f"cost {cost.name!r} prices {cost.nodes} submitted tokens, "
            f"{name} submits {nodes}: measure with more rows"
        )
    if rule == "sequoia":
        tree = best_tree(acceptance, cost, nodes, nodes) if nodes else Tree()
        return TreePolicy(name, "static", tree=tree)
    deepest = min(trace.K, cost.K)
    trees: Iterable[Tree] = (
        medusa_like(acceptance[:depth], nodes) for depth in range(1, deepest + 1)
    )
    if rule == "full":
        trees = _full_trees(nodes, deepest, acceptance.shape[1])
    return TreePolicy(name, "static", tree=fastest_tree(trees, acceptance, cost, nodes))


def _full_trees(nodes: int, deepest: int, ranks: int) -> Iterator[Tree]:
    def shapes(widths: tuple[int, ...], last: int, used: int) -> Iterator[Tree]:
        if widths:
            yield tree_of_widths(widths)
        if len(widths) == deepest:
            return
        for width in range(1, (widths[-1] if widths else ranks) + 1):
            if used + last * width <= nodes:
                yield from shapes((*widths, width), last * width, used + last * width)

    return shapes((), 1, 0)


def _planned_trees(trace: Trace, cost: CostModel) -> TreePolicy:
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
    _best_choice(trace.offset, seconds, cost.catch_up, choice, value)
    return TreePolicy("tree_oracle", "planned", plan=(choice, Outcome(*outcome)))


tree_oracle = DeferredPolicy("tree_oracle", _planned_trees, submits=MAX_NODES, clairvoyant=True)
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
    trees = [tree for tree in dict.fromkeys(shapes) if len(tree)]
    options = [TreePolicy("tree_oracle", "static", tree=tree) for tree in trees]
    if trace.order is not None:
        options += [
            TreePolicy(f"dynamic_tree:{nodes}", "dynamic", nodes=nodes)
            for nodes in range(1, budget + 1)
        ]
    return options


def _price(name: str, outcome: Outcome, cost: CostModel) -> np.ndarray:
    """float64[N]: seconds of the round at each row, catch-up apart; PolicyError for unpriced
    levels.
    """
    deepest = int(outcome.levels.max())
    if deepest > cost.K:
        raise PolicyError(
            f"cost {cost.name!r} prices {cost.K} levels, {name} has {deepest}: measure further"
        )
    price: np.ndarray = cost.seconds_without_backlog(outcome.levels, outcome.rows, outcome.nodes)
    return price


@cached_njit
def _best_choice(
    offset: Array, seconds: Array, catch_up: Array, choice: Array, value: Array
) -> None:
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
        static, "trees", "Medusa, EAGLE", "none", "one tree for every round",
        "widths such as 4x2x1, eagle-25, medusa-63, or a file",
        examples=("static:2x1", "static:eagle-25"),
    ),
    PolicyKind(
        dynamic_tree, "trees", "EAGLE-2; GLIDE, Table 3", "products of q",
        "the first nodes by cumulative confidence; `beams`: a beam search's final hypotheses",
        "nodes are required", examples=("dynamic_tree:4", "dynamic_tree:beams"),
    ),
    PolicyKind(
        cape, "trees", "GLIDE, section 4.2", "max q",
        "a chain, each token with siblings by its confidence; a number: as many everywhere",
        "widths of the section", examples=("cape", "cape:appendix,k=3", "cape:3", "cape:2,k=5"),
    ),
    PolicyKind(
        optimal_tree, "trees", "Sequoia; Medusa, Appendix", "acceptance by rank, costs",
        "the best tree by dynamic programming; `medusa`: the nodes of greatest accuracy; `full`: "
        "the best full tree, widths not growing",
        "the best number of nodes",
        examples=("optimal_tree", "optimal_tree:4", "optimal_tree:4,medusa", "optimal_tree:4,full"),
    ),
    PolicyKind(
        tree_oracle, "trees", "ours", "the recorded tokens",
        "the choice of trees of least time, knowing the future", examples=("tree_oracle",),
    ),
)  # fmt: skip

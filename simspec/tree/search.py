"""The best draft tree for measured acceptance and costs (Sequoia, Medusa).

acceptance is float[K, R]: the probability that the target's token has rank r at depth d + 1, given
its path so far, taken as independent of that path (Sequoia, Chen et al. 2024, section 3.1; Medusa,
Cai et al. 2024, section 2.3.3).
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from simspec.cost.model import CostModel
from simspec.trace.trace import Trace, TraceError
from simspec.tree.tree import MAX_NODES, MAX_RANKS, Tree, TreeError, from_paths


def check_exact(trace: Trace) -> None:
    """TraceError for a trace of the rejection rule, on which no drawn tree is replayed.

    There a node's second child x is tried with p' = norm(max(0, p - q)) against q without the
    first: its chance needs the whole p and q, of which `ratio` holds one quotient.
    """
    if trace.ratio is not None:
        raise TraceError(
            "this trace is of the rejection rule: its ratio is the chance of a single child, "
            "that of a sibling also depends on those rejected before. "
            "Use a greedy or coupled trace, or a dynamic tree or beams, whose nodes are not drawn"
        )


def rank_acceptance(
    trace: Trace,
    R: int = 16,
    indices: Sequence[int] | np.ndarray | None = None,
    reached: bool = True,
) -> np.ndarray:
    """float64[K, R]: share of rows whose token at depth d + 1 has rank r, of rows where a tree
    reaches that depth.

    indices: the sequences to count, default all. reached: only rows whose earlier tokens all had a
    rank below R, where a node of that depth is tried at all; otherwise all rows, a head's accuracy
    by itself. 0 where there is no such row. TraceError without ranks.
    """
    check_exact(trace)
    if trace.rank is None:
        raise TraceError("this trace records no rank, which trees need: record it again")
    if not 1 <= R <= MAX_RANKS:
        raise TreeError(f"R is {R}, expected 1 to {MAX_RANKS} ranks")
    rank = trace.rank
    cap, left = draft_room(trace)
    counted = np.arange(trace.K) < np.minimum(cap, left)[:, None]
    if indices is not None:
        chosen = np.zeros(trace.sequences, bool)
        chosen[np.asarray(indices)] = True
        counted &= np.repeat(chosen, np.diff(trace.offset))[:, None]
    if reached:
        counted[:, 1:] &= np.logical_and.accumulate(rank < R, axis=1)[:, :-1]
    counts = np.stack(
        [np.bincount(rank[counted[:, j], j], minlength=256)[:R] for j in range(trace.K)]
    )
    shares: np.ndarray = counts / np.maximum(counted.sum(axis=0), 1)[:, None]
    return shares


def draft_room(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """(cap, left), int64[N]: the deepest tree at each row, min(K, budget left - 1), and the tokens
    left.

    A row of depth 0 has a cap of 0: the drafter offers nothing there, as EAGLE after a prompt of
    one token.
    """
    length = np.diff(trace.offset)
    position = np.arange(trace.rows) - np.repeat(trace.offset[:-1], length)
    cap = np.minimum(trace.K, np.repeat(trace.budget, length) - position - 1)
    return np.where(trace.depth > 0, cap, 0), np.repeat(length, length) - position


def expected_committed(tree: Tree, acceptance: Any) -> float:
    """Committed tokens a round: 1 + sum over nodes of the product of acceptance[depth - 1, rank]
    along its path.

    The acceptance of nodes outside its shape is 0.
    """
    return 1 + float(_by_depth(tree, _table(acceptance)).sum())


def medusa_like(accuracy: Any, nodes: int) -> Tree:
    """The nodes of the largest product of accuracy[K, R] along their paths, ranks independent
    (Medusa 2.3.3).

    Fewer than `nodes` where all others have probability 0. Of equal products the shorter path comes
    first, then the better ranks. TreeError over 63 nodes.
    """
    accuracy, nodes = _table(accuracy), _budget(nodes)
    K, R = accuracy.shape
    chosen: list[tuple[int, ...]] = []
    waiting: list[tuple[float, int, tuple[int, ...]]] = [
        (-float(probability), 1, (rank,)) for rank, probability in enumerate(accuracy[0])
    ]
    heapq.heapify(waiting)
    while waiting and len(chosen) < nodes:
        negated, depth, path = heapq.heappop(waiting)
        if negated == 0:
            break
        chosen.append(path)
        if depth < K:
            for rank in range(R):
                product = negated * float(accuracy[depth, rank])
                heapq.heappush(waiting, (product, depth + 1, (*path, rank)))
    return from_paths(chosen)


def sequoia_trees(acceptance: Any, nodes: int) -> Iterator[Tree]:
    """The trees of at most 0, 1, .. `nodes` nodes of the largest `expected_committed` (Sequoia,
    section 3.1), from one dynamic program.

    F[d, m], the most that m nodes under an accepted node of depth d can add, is the maximum over
    the number s of them in the subtree of its child of rank r, r = 0, 1, ..: acceptance[d, r] (1 +
    F[d + 1, s - 1]) + the rest's. Nodes of probability 0 are left out.
    """
    acceptance, nodes = _table(acceptance), _budget(nodes)
    K, R = acceptance.shape
    budget = np.arange(nodes + 1)
    rest = np.maximum(budget[:, None] - budget, 0)
    taken = np.zeros((K, R, nodes + 1), np.int64)
    below = np.zeros(nodes + 1)
    for d in range(K - 1, -1, -1):
        child, value = np.concatenate(([0.0], 1 + below[:-1])), np.zeros(nodes + 1)
        for r in range(R - 1, -1, -1):
            # [m, s]: s of m nodes to this child's subtree, the others to children of later ranks
            sums = np.where(budget <= budget[:, None], acceptance[d, r] * child + value[rest], -1.0)
            taken[d, r] = sums.argmax(axis=1)
            value = np.take_along_axis(sums, taken[d, r][:, None], 1)[:, 0]
        below = value
    for m in range(nodes + 1):
        yield _rebuilt(taken, m)


def _rebuilt(taken: np.ndarray, nodes: int) -> Tree:
    parents: list[int] = []
    ranks: list[int] = []
    todo = deque([(0, nodes, 0)])
    while todo:
        d, left, row = todo.popleft()
        for r in range(taken.shape[1] if d < len(taken) else 0):
            if size := int(taken[d, r, left]):
                parents.append(row)
                ranks.append(r)
                todo.append((d + 1, size - 1, len(parents)))
                left -= size
    return Tree(tuple(parents), tuple(ranks))


def expected_seconds(tree: Tree, acceptance: Any, cost: CostModel) -> float:
    """Mean seconds of a round.

    overhead + draft[levels] + node (rows - levels) + verify[n] + E[catch_up[accepted]]
    """
    if not len(tree):
        return cost.overhead + float(cost.verify[0])
    levels = tree.levels
    if levels > cost.K or len(tree) > cost.nodes:
        raise TreeError(
            f"cost {cost.name!r} prices {cost.K} levels and {cost.nodes} nodes, "
            f"a tree has {levels} and {len(tree)}: measure more"
        )
    reached = np.concatenate(([1.0], _by_depth(tree, _table(acceptance)), [0.0]))
    backlog = np.minimum(np.arange(len(reached) - 1), len(cost.catch_up) - 1)
    catch_up = cost.catch_up[backlog] @ (reached[:-1] - reached[1:])
    return float(cost.seconds_without_backlog(levels, tree.rows, len(tree)) + catch_up)


def best_tree(acceptance: Any, cost: CostModel, most: int = MAX_NODES, least: int = 0) -> Tree:
    """The tree of the most expected tokens per second, of `least` to `most` nodes and any priced
    depth.

    `sequoia_trees` of acceptance[:d] for each depth d, priced by `expected_seconds`: the measured
    staircase of `verify` decides the number of nodes (Sequoia's hardware-aware size and depth,
    section 3.3). Never more nodes than `verify` prices; ties go to the shallower, smaller tree.
    """
    acceptance = _table(acceptance)
    budget = min(_budget(most), cost.nodes)
    depths = range(1, min(len(acceptance), cost.K) + 1)
    trees = [tree for depth in depths for tree in sequoia_trees(acceptance[:depth], budget)]
    return fastest_tree(trees, acceptance, cost, least)


def fastest_tree(trees: Iterable[Tree], acceptance: Any, cost: CostModel, least: int = 0) -> Tree:
    """Of the trees with at least `least` nodes the first with the most expected tokens per second.

    Where none has that many, of those with the most nodes.
    """
    trees = list(trees)
    least = min(least, max(map(len, trees), default=0))
    fastest, best_rate = Tree(), 0.0
    for tree in trees:
        if len(tree) >= least:
            rate = expected_committed(tree, acceptance) / expected_seconds(tree, acceptance, cost)
            if rate > best_rate * (1 + 1e-12):
                fastest, best_rate = tree, rate
    return fastest


def _by_depth(tree: Tree, acceptance: np.ndarray) -> np.ndarray:
    """float64[levels]: the expected number of accepted nodes at each depth."""
    K, R = acceptance.shape
    reach, sums = [1.0], np.zeros(max(tree.levels, 1))
    for parent, rank, depth in zip(tree.parent, tree.rank, tree.depth):
        inside = depth <= K and rank < R
        reach.append(reach[parent] * (float(acceptance[depth - 1, rank]) if inside else 0.0))
        sums[depth - 1] += reach[-1]
    return sums


def _table(acceptance: Any) -> np.ndarray:
    acceptance = np.asarray(acceptance, dtype=np.float64)
    shape = acceptance.shape
    if (
        acceptance.ndim != 2
        or not acceptance.size
        or shape[1] > MAX_RANKS
        or not ((acceptance >= 0) & (acceptance <= 1)).all()
    ):
        raise TreeError(
            f"acceptance is {list(shape)}, expected probabilities in [0, 1] as [depths, ranks], "
            f"at most {MAX_RANKS} ranks"
        )
    table: np.ndarray = acceptance
    return table


def _budget(nodes: int) -> int:
    if not 0 <= nodes <= MAX_NODES:
        raise TreeError(f"{nodes} nodes are over budget, expected an integer in 0..{MAX_NODES}")
    return int(nodes)

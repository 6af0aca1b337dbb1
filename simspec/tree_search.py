"""The best draft tree for measured acceptance and costs (Sequoia, Medusa)."""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from simspec.cost import CostModel
from simspec.tree import MAX_NODES, MAX_RANKS, Tree, TreeError, from_paths


def expected_committed(tree: Tree, acceptance) -> float:
    """Committed tokens a round: 1 + sum over nodes of the product, along its path, of
    acceptance[depth - 1, rank].

    acceptance float[K, R]: the chance that the text's token has that rank at that depth, given its
    path so far; taken as independent of which path that was (Sequoia, Chen et al. 2024, section
    3.1; Medusa, Cai et al. 2024, section 2.3.3). What it has no entry for is 0.
    """
    return 1 + float(_by_depth(tree, _table(acceptance)).sum())


def medusa_like(accuracy, nodes: int) -> Tree:
    """The nodes of greatest product of accuracy[K, R] along their paths, a head's ranks independent
    of the others' (Medusa 2.3.3).

    Fewer than `nodes` where no other has a chance. Of equal products the shorter path, then the
    better ranks. TreeError over 63 nodes.
    """
    accuracy, nodes = _table(accuracy), _budget(nodes)
    K, R = accuracy.shape
    chosen, waiting = [], [(-float(a), 1, (r,)) for r, a in enumerate(accuracy[0])]
    heapq.heapify(waiting)
    while waiting and len(chosen) < nodes:
        chance, depth, path = heapq.heappop(waiting)
        if chance == 0:
            break
        chosen.append(path)
        if depth < K:
            for r in range(R):
                heapq.heappush(waiting, (chance * float(accuracy[depth, r]), depth + 1, (*path, r)))
    return from_paths(chosen)


def sequoia_tree(acceptance, nodes: int) -> Tree:
    """The tree of at most `nodes` nodes of greatest `expected_committed`, by Sequoia's dynamic
    programme (Chen et al. 2024, section 3.1).

    F[d, m]: the most that m nodes under an accepted node of depth d can add = max over how many of
    them, s, go to the subtree of its child of rank r, r = 0, 1, ..: acceptance[d, r] (1 + F[d + 1,
    s - 1]) + the rest's. acceptance float[K, R]; no node without a chance.
    """
    *_, last = sequoia_trees(acceptance, nodes)
    return last


def sequoia_trees(acceptance, nodes: int) -> Iterator[Tree]:
    """`sequoia_tree` of 0, 1, .. `nodes` nodes, from one programme."""
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


def _rebuilt(taken, nodes):
    parents, ranks, todo = [], [], deque([(0, nodes, 0)])
    while todo:
        d, left, row = todo.popleft()
        for r in range(taken.shape[1] if d < len(taken) else 0):
            if size := int(taken[d, r, left]):
                parents.append(row)
                ranks.append(r)
                todo.append((d + 1, size - 1, len(parents)))
                left -= size
    return Tree(tuple(parents), tuple(ranks))


def expected_seconds(tree: Tree, acceptance, cost: CostModel) -> float:
    """Seconds of a round on average: overhead + draft[levels] + node (rows - levels) + verify[n] +
    E[catch_up[accepted]].
    """
    if not len(tree):
        return cost.overhead + float(cost.verify[0])
    levels = tree.levels
    if levels > cost.K or len(tree) > cost.nodes:
        has = f"a tree has {levels} and {len(tree)}"
        raise TreeError(
            f"cost {cost.name!r} prices {cost.K} levels and {cost.nodes} nodes, {has}: measure more"
        )
    reached = np.concatenate(([1.0], _by_depth(tree, _table(acceptance)), [0.0]))
    owed = cost.catch_up[np.minimum(np.arange(len(reached) - 1), len(cost.catch_up) - 1)] @ (
        reached[:-1] - reached[1:]
    )
    return float(
        cost.overhead
        + cost.draft[levels]
        + cost.node * (tree.rows - levels)
        + cost.verify[len(tree)]
        + owed
    )


def best_tree(acceptance, cost: CostModel, most: int = MAX_NODES, least: int = 0) -> Tree:
    """The tree of most `expected_committed` committed tokens per second, over `least` to `most`
    nodes and every depth that costs price.

    `sequoia_tree` of acceptance[:d] for each depth d, priced by `expected_seconds`: the measured
    staircase of `verify` decides how many nodes pay (Sequoia's hardware-aware size and depth,
    section 3.3). Never more nodes than `verify` prices; ties go to the shallower, smaller tree.
    """
    acceptance, depths = _table(acceptance), range(1, min(len(acceptance), cost.K) + 1)
    trees = [
        tree
        for d in depths
        for tree in sequoia_trees(acceptance[:d], min(_budget(most), cost.nodes))
    ]
    return fastest_tree(trees, acceptance, cost, least)


def fastest_tree(trees: Iterable[Tree], acceptance, cost: CostModel, least: int = 0) -> Tree:
    """Of these trees with at least so many nodes (or as many as any has) the one of most
    `expected_committed` a second; the first of equals.
    """
    trees = list(trees)
    least = min(least, max(map(len, trees), default=0))
    chosen, rate = Tree(), 0.0
    for tree in trees:
        if len(tree) >= least:
            found = expected_committed(tree, acceptance) / expected_seconds(tree, acceptance, cost)
            if found > rate * (1 + 1e-12):
                chosen, rate = tree, found
    return chosen


def _by_depth(tree, acceptance):
    K, R = acceptance.shape
    reach, sums = [1.0], np.zeros(max(tree.levels, 1))
    for parent, rank, depth in zip(tree.parent, tree.rank, tree.depth):
        reach.append(
            reach[parent] * (float(acceptance[depth - 1, rank]) if depth <= K and rank < R else 0.0)
        )
        sums[depth - 1] += reach[-1]
    return sums


def _table(acceptance):
    acceptance = np.asarray(acceptance, dtype=np.float64)
    if (
        acceptance.ndim != 2
        or not acceptance.size
        or acceptance.shape[1] > MAX_RANKS
        or not ((acceptance >= 0) & (acceptance <= 1)).all()
    ):
        raise TreeError(
            f"acceptance is {list(acceptance.shape)}, expected chances in [0, 1] as [depths, "
            f"ranks], at most {MAX_RANKS} ranks"
        )
    return acceptance


def _budget(nodes):
    if isinstance(nodes, bool) or not isinstance(nodes, (int, np.integer)) or not 0 <= nodes:
        raise TreeError(f"nodes is {nodes!r}, expected an integer in 0..{MAX_NODES}")
    if nodes > MAX_NODES:
        raise TreeError(f"{nodes} nodes are over budget, expected at most {MAX_NODES}")
    return int(nodes)

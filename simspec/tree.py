"""Draft trees: their shape, its file form, and the best shape for what a recording's drafter is right about."""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simspec.cost import CostModel
from simspec.files import check_keys, read_json
from simspec.trace import Trace, TraceError

MOST = 63
"""Nodes that a tree may have: 64 rows with the last committed token's."""
WIDEST = 32
"""Ranks that a node may carry are below this."""


class TreeError(ValueError):
    """A draft tree that cannot be."""


@dataclass(frozen=True)
class Tree:
    """A draft tree of n nodes. Row 0 is the last committed token, node i (from 0) stands in row i + 1.

    | field  | type, shape | meaning                                                                                  |
    | ------ | ----------- | ---------------------------------------------------------------------------------------- |
    | parent | (int,) [n]  | the ROW of node i's parent: 0, or an earlier node's                                        |
    | rank   | (int,) [n]  | which of the drafter's best continuations of its parent the node carries, 0 the best        |

    TreeError, one line, for a cycle, a parent that is not earlier, two nodes of one rank under one parent, a rank of 32 or more, and
    for more than 63 nodes.
    """

    parent: tuple = ()
    rank: tuple = ()

    def __post_init__(self):
        for name in ("parent", "rank"):
            values = getattr(self, name)
            values = values.tolist() if isinstance(values, np.ndarray) else values
            if not isinstance(values, (tuple, list)) or not all(
                isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values
            ):
                raise TreeError(f"tree: {name} is {values!r}, expected a list of integers >= 0")
            object.__setattr__(self, name, tuple(values))
        n = len(self.parent)
        if len(self.rank) != n:
            raise TreeError(
                f"tree: {n} parents and {len(self.rank)} ranks, expected as many of both"
            )
        if n > MOST:
            raise TreeError(f"tree: {n} nodes are over budget, expected at most {MOST}: cut it")
        for i, (parent, rank) in enumerate(zip(self.parent, self.rank)):
            if parent > n:
                raise TreeError(
                    f"tree: node {i} has its parent in row {parent}, the last row is {n}"
                )
            if parent > i:
                self._refuse_cycle(i)
                raise TreeError(
                    f"tree: node {i} has its parent in row {parent}, which comes later: put parents before their children"
                )
            if rank >= WIDEST:
                raise TreeError(
                    f"tree: node {i} has rank {rank}, too wide: expected a rank below {WIDEST}"
                )
        if len(set(zip(self.parent, self.rank))) < n:
            seen = list(zip(self.parent, self.rank))
            twice = next(i for i, pair in enumerate(seen) if pair in seen[:i])
            parent, rank = seen[twice]
            raise TreeError(
                f"tree: nodes {seen.index(seen[twice])} and {twice} both have rank {rank} under row {parent}: leave one out"
            )

    def _refuse_cycle(self, i):
        row, steps = i + 1, 0
        while 0 < row <= len(self.parent) and steps <= len(self.parent):
            row, steps = self.parent[row - 1], steps + 1
        if steps > len(self.parent):
            raise TreeError(
                f"tree: node {i} is in a cycle, or hangs on one: expected parents that lead to row 0"
            )

    def __len__(self):
        return len(self.parent)

    @cached_property
    def depth(self) -> tuple:
        """(int,) [n]: edges from each node to row 0; 1 is the first draft slot."""
        depth = [0]
        for parent in self.parent:
            depth.append(depth[parent] + 1)
        return tuple(depth[1:])

    @property
    def levels(self) -> int:
        """The deepest node's depth, 0 without nodes: passes of the drafter that draft it."""
        return max(self.depth, default=0)

    @cached_property
    def paths(self) -> tuple:
        """((int,),) [n]: the ranks that lead from row 0 to each node."""
        paths = [()]
        for parent, rank in zip(self.parent, self.rank):
            paths.append((*paths[parent], rank))
        return tuple(paths[1:])

    @property
    def rows(self) -> int:
        """Rows that the drafter reads to draft it: one in the first pass, later the nodes of the last level that have children."""
        return len(set(self.parent))

    def cut(self, cap: int) -> "Tree":
        """The nodes no deeper than cap."""
        if self.levels <= cap:
            return self
        return from_paths(path for path in self.paths if len(path) <= cap)

    def within(self, K: int) -> "Tree":
        """The tree itself; TreeError if it is deeper than the K that a recording or engine reaches."""
        if self.levels > K:
            raise TreeError(
                f"tree: {self.levels} levels are too deep, here drafts reach {K}: cut it, or record deeper"
            )
        return self

    def to_dict(self) -> dict:
        """The JSON form, {"parent": [...], "rank": [...]}."""
        return {"parent": list(self.parent), "rank": list(self.rank)}


def from_paths(paths: Iterable) -> Tree:
    """The tree of these nodes, each given by the ranks that lead to it (Medusa's form), by depth; TreeError where a prefix is missing."""
    listed = []
    for path in paths:
        if (
            not isinstance(path, (tuple, list))
            or not path
            or not all(isinstance(r, int) and not isinstance(r, bool) for r in path)
        ):
            raise TreeError(f"tree: {path!r} is no path, expected a list of ranks such as [0, 1]")
        listed.append(tuple(path))
    row, parents = {(): 0}, []
    for path in sorted(listed, key=lambda path: (len(path), path)):
        if path in row:
            raise TreeError(f"tree: path {list(path)} is there twice")
        if path[:-1] not in row:
            raise TreeError(
                f"tree: path {list(path)} starts from {list(path[:-1])}, which is not in the tree: add it"
            )
        parents.append(row[path[:-1]])
        row[path] = len(row)
    return Tree(tuple(parents), tuple(path[-1] for path in row if path))


def chain_tree(k: int) -> Tree:
    """The drafter's best token k times over, no branch."""
    return Tree(tuple(range(k)), (0,) * k)


def full(widths: Iterable[int]) -> Tree:
    """Every node of level l has the widths[l] best children; TreeError for a width below 1."""
    widths, paths, last = tuple(widths), [], [()]
    for width in widths:
        if width < 1:
            raise TreeError(f"tree: widths are {widths}, expected numbers of at least 1")
        last = [(*path, rank) for path in last for rank in range(width)]
        paths += last
        if len(paths) > MOST:
            raise TreeError(
                f"tree: widths {'x'.join(map(str, widths))} give over {MOST} nodes, over budget: expected at most {MOST}"
            )
    return from_paths(paths)


def load_tree(path) -> Tree:
    """Read {"parent": [...], "rank": [...]} or {"paths": [[0], [0, 0]]}; ValueError, one line with the path, for anything else."""

    def made(data):
        if isinstance(data, dict) and "paths" in data:
            check_keys(data, ("paths",))
            if not isinstance(data["paths"], list):
                raise TreeError(
                    f"paths is a {type(data['paths']).__name__}, expected a list of lists"
                )
            return from_paths(data["paths"])
        check_keys(data, ("parent", "rank"))
        return Tree(data["parent"], data["rank"])

    return read_json(path, made, "draft tree")


def expected(tree: Tree, acceptance) -> float:
    """Committed tokens a round: 1 + sum over nodes of the product, along its path, of acceptance[depth - 1, rank].

    acceptance float[K, R]: the chance that the text's token has that rank at that depth, given its path so far; taken as independent
    of which path that was (Sequoia, Chen et al. 2024, section 3.1; Medusa, Cai et al. 2024, section 2.3.3). What it has no entry for is 0.
    """
    return 1 + float(_by_depth(tree, _table(acceptance)).sum())


def medusa_like(accuracy, nodes: int) -> Tree:
    """The nodes of greatest product of accuracy[K, R] along their paths, a head's ranks independent of the others' (Medusa 2.3.3).

    Fewer than `nodes` where no other has a chance. Of equal products the shorter path, then the better ranks. TreeError over 63 nodes.
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


def optimal(acceptance, nodes: int) -> Tree:
    """The tree of at most `nodes` nodes of greatest `expected`, by Sequoia's dynamic programme (Chen et al. 2024, section 3.1).

    F[d, m]: the most that m nodes under an accepted node of depth d can add = max over how many of them, s, go to the subtree of its
    child of rank r, r = 0, 1, ..: acceptance[d, r] (1 + F[d + 1, s - 1]) + the rest's. acceptance float[K, R]; no node without a chance.
    """
    *_, last = family(acceptance, nodes)
    return last


def family(acceptance, nodes: int) -> Iterator[Tree]:
    """`optimal` of 0, 1, .. `nodes` nodes, from one programme."""
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


def seconds_of(tree: Tree, acceptance, cost: CostModel) -> float:
    """Seconds of a round on average: overhead + draft[levels] + node (rows - levels) + verify[n] + E[catch_up[accepted]]."""
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


def best(acceptance, cost: CostModel, most: int = MOST, least: int = 0) -> Tree:
    """The tree of most `expected` committed tokens per second, over `least` to `most` nodes and every depth that costs price.

    `optimal` of acceptance[:d] for each depth d, priced by `seconds_of`: the measured staircase of `verify` decides how many nodes pay
    (Sequoia's hardware-aware size and depth, section 3.3). Never more nodes than `verify` prices; ties go to the shallower, smaller tree.
    """
    acceptance, depths = _table(acceptance), range(1, min(len(acceptance), cost.K) + 1)
    trees = [
        tree for d in depths for tree in family(acceptance[:d], min(_budget(most), cost.nodes))
    ]
    return fastest(trees, acceptance, cost, least)


def fastest(trees: Iterable[Tree], acceptance, cost: CostModel, least: int = 0) -> Tree:
    """Of these trees with at least so many nodes (or as many as any has) the one of most `expected` a second; the first of equals."""
    trees = list(trees)
    least = min(least, max(map(len, trees), default=0))
    chosen, rate = Tree(), 0.0
    for tree in trees:
        if len(tree) >= least:
            found = expected(tree, acceptance) / seconds_of(tree, acceptance, cost)
            if found > rate * (1 + 1e-12):
                chosen, rate = tree, found
    return chosen


def rank_acceptance(trace: Trace, R: int = 16, indices=None, reached: bool = True) -> np.ndarray:
    """float64[K, R]: share of rows whose text's token at depth d + 1 has rank r, of those where a tree could go so deep.

    indices are the sequences to count, default all. With reached, only rows whose earlier tokens all had a rank below R: where a node
    of that depth is tried at all. Without, all rows: a head's accuracy by itself. 0 where there is no such row. TraceError without ranks.
    """
    if trace.rank is None:
        raise TraceError("this trace records no rank, which trees need: record it again")
    if not 1 <= R <= WIDEST:
        raise TreeError(f"R is {R}, expected 1 to {WIDEST} ranks")
    cap, left = room(trace)
    live = np.arange(trace.K) < np.minimum(cap, left)[:, None]
    if indices is not None:
        chosen = np.zeros(trace.sequences, bool)
        chosen[np.asarray(indices)] = True
        live &= np.repeat(chosen, np.diff(trace.offset))[:, None]
    if reached:
        live[:, 1:] &= np.logical_and.accumulate(trace.rank < R, axis=1)[:, :-1]
    counts = np.stack(
        [np.bincount(trace.rank[live[:, j], j], minlength=256)[:R] for j in range(trace.K)]
    )
    return counts / np.maximum(live.sum(axis=0), 1)[:, None]


def room(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """(cap, left), int64[N]: how deep a tree may be drafted at each row, min(K, budget left - 1), and how much text is left.

    A row of depth 0 has a cap of 0: there the drafter has nothing to offer, as EAGLE behind a prompt of one token.
    """
    length = np.diff(trace.offset)
    position = np.arange(trace.rows) - np.repeat(trace.offset[:-1], length)
    cap = np.minimum(trace.K, np.repeat(trace.budget, length) - position - 1)
    return np.where(trace.depth > 0, cap, 0), np.repeat(length, length) - position


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
        or acceptance.shape[1] > WIDEST
        or not ((acceptance >= 0) & (acceptance <= 1)).all()
    ):
        raise TreeError(
            f"acceptance is {list(acceptance.shape)}, expected chances in [0, 1] as [depths, ranks], at most {WIDEST} ranks"
        )
    return acceptance


def _budget(nodes):
    if isinstance(nodes, bool) or not isinstance(nodes, (int, np.integer)) or not 0 <= nodes:
        raise TreeError(f"nodes is {nodes!r}, expected an integer in 0..{MOST}")
    if nodes > MOST:
        raise TreeError(f"{nodes} nodes are over budget, expected at most {MOST}")
    return int(nodes)

"""Draft trees: their shape, its file form, and the best shape for what a recording's drafter is
right about.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

MAX_NODES = 63
"""Nodes that a tree may have: 64 rows with the last committed token's."""
MAX_RANKS = 32
"""Ranks that a node may carry are below this."""


class TreeError(ValueError):
    """A draft tree that cannot be."""


@dataclass(frozen=True)
class Tree:
    """A draft tree of n nodes. Row 0 is the last committed token, node i (from 0) stands in row i +
    1.

    | field | type, shape | meaning |
    | --- | --- | --- |
    | parent | (int,) [n] | the ROW of node i's parent: 0, or an earlier node's |
    | rank | (int,) [n] | which of the drafter's best continuations of its parent the node carries, 0 the best |

    TreeError, one line, for a cycle, a parent that is not earlier, two nodes of one rank under one
    parent, a rank of 32 or more, and for more than 63 nodes.
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
        if n > MAX_NODES:
            raise TreeError(
                f"tree: {n} nodes are over budget, expected at most {MAX_NODES}: cut it"
            )
        for i, (parent, rank) in enumerate(zip(self.parent, self.rank)):
            if parent > n:
                raise TreeError(
                    f"tree: node {i} has its parent in row {parent}, the last row is {n}"
                )
            if parent > i:
                self._refuse_cycle(i)
                raise TreeError(
                    f"tree: node {i} has its parent in row {parent}, which comes later: put "
                    "parents before their children"
                )
            if rank >= MAX_RANKS:
                raise TreeError(
                    f"tree: node {i} has rank {rank}, too wide: expected a rank below {MAX_RANKS}"
                )
        if len(set(zip(self.parent, self.rank))) < n:
            seen = list(zip(self.parent, self.rank))
            twice = next(i for i, pair in enumerate(seen) if pair in seen[:i])
            parent, rank = seen[twice]
            raise TreeError(
                f"tree: nodes {seen.index(seen[twice])} and {twice} both have rank {rank} under "
                f"row {parent}: leave one out"
            )

    def _refuse_cycle(self, i):
        row, steps = i + 1, 0
        while 0 < row <= len(self.parent) and steps <= len(self.parent):
            row, steps = self.parent[row - 1], steps + 1
        if steps > len(self.parent):
            raise TreeError(
                f"tree: node {i} is in a cycle, or hangs on one: expected parents that lead to row "
                "0"
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
        """Rows that the drafter reads to draft it: one in the first pass, later the nodes of the
        last level that have children.
        """
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
                f"tree: {self.levels} levels are too deep, here drafts reach {K}: cut it, or "
                "record deeper"
            )
        return self

    def to_dict(self) -> dict:
        """The JSON form, {"parent": [...], "rank": [...]}."""
        return {"parent": list(self.parent), "rank": list(self.rank)}


def from_paths(paths: Iterable) -> Tree:
    """The tree of these nodes, each given by the ranks that lead to it (Medusa's form), by depth;
    TreeError where a prefix is missing.
    """
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
                f"tree: path {list(path)} starts from {list(path[:-1])}, which is not in the tree: "
                "add it"
            )
        parents.append(row[path[:-1]])
        row[path] = len(row)
    return Tree(tuple(parents), tuple(path[-1] for path in row if path))

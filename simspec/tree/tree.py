"""Draft trees: parents and ranks of nodes, given shapes, their JSON file; and TreePolicy,
which tree a round submits."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from simspec.output.files import check_keys, read_json
from simspec.policy.policy import PolicyError, check_argument
from simspec.published import FOLDER

MAX_NODES = 63
"""Nodes that a tree may have: 64 rows with the last committed token's."""
MAX_RANKS = 32
"""Ranks that a node may carry are below this."""


class TreeError(ValueError):
    """An invalid draft tree."""


@dataclass(frozen=True)
class Tree:
    """A draft tree of n nodes. Row 0 is the last committed token, node i (from 0) is row i + 1.

    | field  | type, shape | meaning                                                          |
    | ------ | ----------- | ---------------------------------------------------------------- |
    | parent | (int,) [n]  | the ROW of node i's parent: 0, or an earlier node's              |
    | rank   | (int,) [n]  | the node's place among the drafter's continuations of its parent |

    Rank 0 is the best. TreeError, one line, for a parent that is not earlier, two nodes of one rank
    under one parent, a rank of 32 or more, and for more than 63 nodes.
    """

    parent: tuple[int, ...] = ()
    rank: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("parent", "rank"):
            values = getattr(self, name)
            values = values.tolist() if isinstance(values, np.ndarray) else values
            if not isinstance(values, (tuple, list)) or not all(map(_is_count, values)):
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
        first: dict[tuple[int, int], int] = {}
        for i, (parent, rank) in enumerate(zip(self.parent, self.rank)):
            if parent > i:
                raise TreeError(
                    f"tree: node {i} has its parent in row {parent}, expected an earlier row: "
                    "put parents before their children"
                )
            if rank >= MAX_RANKS:
                raise TreeError(
                    f"tree: node {i} has rank {rank}, too wide: expected a rank below {MAX_RANKS}"
                )
            if (parent, rank) in first:
                raise TreeError(
                    f"tree: nodes {first[parent, rank]} and {i} both have rank {rank} "
                    f"under row {parent}: leave one out"
                )
            first[parent, rank] = i

    def __len__(self) -> int:
        return len(self.parent)

    @cached_property
    def depth(self) -> tuple[int, ...]:
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
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """((int,),) [n]: the ranks that lead from row 0 to each node."""
        paths: list[tuple[int, ...]] = [()]
        for parent, rank in zip(self.parent, self.rank):
            paths.append((*paths[parent], rank))
        return tuple(paths[1:])

    @property
    def rows(self) -> int:
        """Rows that the drafter reads to draft it: one in the first pass, then every node with
        children.
        """
        return len(set(self.parent))

    def cut(self, cap: int) -> "Tree":
        """The nodes no deeper than cap."""
        if self.levels <= cap:
            return self
        return from_paths(path for path in self.paths if len(path) <= cap)

    def within(self, K: int) -> "Tree":
        """The tree itself; TreeError if it is deeper than the K that a recording or engine
        reaches.
        """
        if self.levels > K:
            raise TreeError(
                f"tree: {self.levels} levels are too deep, here drafts reach {K}: "
                "cut it, or record deeper"
            )
        return self


def from_paths(paths: Iterable[Any]) -> Tree:
    """The tree of these nodes, each given by the ranks that lead to it (Medusa's form), sorted by
    depth.

    TreeError where a prefix is missing.
    """
    nodes = []
    for path in paths:
        ranks = isinstance(path, (tuple, list)) and path and all(map(_is_integer, path))
        if not ranks:
            raise TreeError(f"tree: {path!r} is no path, expected a list of ranks such as [0, 1]")
        nodes.append(tuple(path))
    row: dict[tuple[int, ...], int] = {(): 0}
    parents = []
    for path in sorted(nodes, key=lambda path: (len(path), path)):
        if path in row:
            raise TreeError(f"tree: path {list(path)} is there twice")
        if path[:-1] not in row:
            raise TreeError(
                f"tree: path {list(path)} starts from {list(path[:-1])}, "
                "which is not in the tree: add it"
            )
        parents.append(row[path[:-1]])
        row[path] = len(row)
    return Tree(tuple(parents), tuple(path[-1] for path in row if path))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_integer(value) and value >= 0


PUBLISHED = {"eagle-25": "tree-eagle-25.json", "medusa-63": "tree-medusa-63.json"}
"""Trees that their authors chose by hand or by search (`published/SOURCES.txt`)."""


def chain_tree(k: int) -> Tree:
    """The drafter's best token k times in a row, without branches."""
    return Tree(tuple(range(k)), (0,) * k)


def tree_of_widths(widths: Iterable[int]) -> Tree:
    """Every node of level l has the widths[l] best children; TreeError for a width below 1."""
    widths = tuple(widths)
    paths: list[tuple[int, ...]] = []
    level: list[tuple[int, ...]] = [()]
    for width in widths:
        if width < 1:
            raise TreeError(f"tree: widths are {widths}, expected numbers of at least 1")
        if len(paths) + len(level) * width > MAX_NODES:
            raise TreeError(
                f"tree: widths {'x'.join(map(str, widths))} give over {MAX_NODES} nodes, "
                f"over budget: expected at most {MAX_NODES}"
            )
        level = [(*path, rank) for path in level for rank in range(width)]
        paths += level
    return from_paths(paths)


def load_tree(path: str | PathLike[str]) -> Tree:
    """Reads {"parent": [...], "rank": [...]} or {"paths": [[0], [0, 0]]}.

    ValueError, one line with the path, for anything else.
    """
    return read_json(path, _tree, "draft tree")


def published_tree(name: str) -> Tree:
    """The published tree of this name in `PUBLISHED`; TreeError for another one."""
    if name not in PUBLISHED:
        raise TreeError(f"tree {name!r} is not published, expected one of {', '.join(PUBLISHED)}")
    return load_tree(FOLDER / PUBLISHED[name])


def _tree(data: Any) -> Tree:
    if isinstance(data, dict) and "paths" in data:
        check_keys(data, ("paths",))
        paths = data["paths"]
        if not isinstance(paths, list):
            raise TreeError(f"paths is a {type(paths).__name__}, expected a list of lists")
        return from_paths(paths)
    check_keys(data, ("parent", "rank"))
    return Tree(data["parent"], data["rank"])


def _most(number: int) -> Any:
    return Annotated[int, Meta(ge=0, le=number)]


KINDS = ("static", "dynamic", "beam", "cape", "planned")
MAX_SUBMITTED = 32
"""Tokens that a round of CAPE submits at most."""


@dataclass(frozen=True)
class TreePolicy:
    """Nodes to submit in each round; `simspec.tree.replay.replay_tree` replays it.

    | field | type              | kind    | meaning                                              |
    | ----- | ----------------- | ------- | ---------------------------------------------------- |
    | name  | str               |         | label in tables                                      |
    | kind  | str               |         | static, dynamic, beam, cape or planned               |
    | tree  | Tree              | static  | the shape, cut at the row's cap                      |
    | nodes | int, 0..63        | dynamic | submitted, by cumulative confidence (EAGLE-2)        |
    | k     | int or None       | cape    | length of the chain, at most 32; None: K             |
    | sets  | str or int, 0..31 | cape    | section or appendix (tables of widths), or one width |
    | plan  | (choice, Outcome) | planned | int64[N, B] by row and backlog, into [C, N]          |

    PolicyError, one line, for a value outside these.
    """

    name: str
    kind: str
    tree: Tree = Tree()
    nodes: int = 0
    k: int | None = None
    sets: str | int = 0
    plan: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PolicyError(
                f"tree policy {self.name!r}: kind is {self.kind!r}, "
                f"expected one of {', '.join(KINDS)}"
            )
        if not isinstance(self.tree, Tree):
            raise PolicyError(f"{self.name}: tree is {self.tree!r}, expected a Tree")
        check_argument(self.name, "nodes", self.nodes, _most(MAX_NODES))
        check_argument(self.name, "k", self.k, _most(MAX_SUBMITTED) | None)
        if not isinstance(self.sets, str):
            check_argument(self.name, "width", self.sets, _most(MAX_SUBMITTED - 1))
        elif self.sets not in ("section", "appendix"):
            raise PolicyError(
                f"{self.name}: the table of widths is {self.sets!r}, expected section or appendix"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the features that it receives, which `CostModel.feature` prices."""
        return ("confidence",) if self.kind == "cape" and isinstance(self.sets, str) else ()

    def submitted(self, K: int) -> int:
        """Tree nodes that costs must price where drafts reach K."""
        nodes = {"static": len(self.tree), "dynamic": self.nodes, "beam": MAX_NODES}
        return max(K, nodes.get(self.kind, MAX_SUBMITTED))

    def longest(self, K: int) -> int:
        """The longest chain that `depth` may cut where drafts reach K: 0 for all kinds but CAPE."""
        if self.kind != "cape":
            return 0
        return min(K, MAX_SUBMITTED) if self.k is None else self.k

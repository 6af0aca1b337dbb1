"""Draft trees of a given shape, and their JSON file."""

from collections.abc import Iterable
from os import PathLike
from typing import Any

from simspec.files import check_keys, read_json
from simspec.published import FOLDER
from simspec.tree import MAX_NODES, Tree, TreeError, from_paths

PUBLISHED = {"eagle-25": "tree-eagle-25.json", "medusa-63": "tree-medusa-63.json"}
"""Trees that their authors chose by hand or by search, and their files (`published/SOURCES.md`)."""


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

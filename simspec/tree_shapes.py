"""Draft trees of a given shape, and their JSON file."""

from collections.abc import Iterable

from simspec.files import check_keys, read_json
from simspec.tree import MAX_NODES, Tree, TreeError, from_paths


def chain_tree(k: int) -> Tree:
    """The drafter's best token k times over, no branch."""
    return Tree(tuple(range(k)), (0,) * k)


def tree_of_widths(widths: Iterable[int]) -> Tree:
    """Every node of level l has the widths[l] best children; TreeError for a width below 1."""
    widths, paths, last = tuple(widths), [], [()]
    for width in widths:
        if width < 1:
            raise TreeError(f"tree: widths are {widths}, expected numbers of at least 1")
        last = [(*path, rank) for path in last for rank in range(width)]
        paths += last
        if len(paths) > MAX_NODES:
            raise TreeError(
                f"tree: widths {'x'.join(map(str, widths))} give over {MAX_NODES} nodes, over "
                f"budget: expected at most {MAX_NODES}"
            )
    return from_paths(paths)


def load_tree(path) -> Tree:
    """Read {"parent": [...], "rank": [...]} or {"paths": [[0], [0, 0]]}; ValueError, one line with
    the path, for anything else.
    """

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

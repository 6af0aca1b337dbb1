"""Policies that submit trees, by name: shapes that are given, made from ranks or from the order, CAPE's sets, the clairvoyant choice."""

from pathlib import Path

from simspec.policy import PolicyError
from simspec.tree_policy import TreePolicy
from simspec.tree_shapes import load_tree, tree_of_widths


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
    return TreePolicy(name, "static", tree=tree_of_widths(wide))


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

"""Policies that submit trees of a given shape, dynamic trees, beams and CAPE's sets."""

from pathlib import Path

from simspec.policy.policy import PolicyError
from simspec.policy_kind import PolicyKind
from simspec.tree.policy import TreePolicy
from simspec.tree.tree import PUBLISHED, load_tree, published_tree, tree_of_widths


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


def dynamic_tree(nodes: int) -> TreePolicy:
    """The first `nodes` of the recorded dynamic tree in the order of cumulative confidence
    (EAGLE-2).
    """
    return TreePolicy(f"dynamic_tree:{nodes}", "dynamic", nodes=nodes)


def beams() -> TreePolicy:
    """The final hypotheses of the recorded beam search, as one tree (the comparison of GLIDE Table
    3).
    """
    return TreePolicy("beams", "beam")


def cape(sets: str = "section", k: int | None = None) -> TreePolicy:
    """CAPE (GLIDE section 4.2): a chain of k tokens, each with siblings by its confidence, see
    `sibling_counts`.

    At most 32 tokens are submitted: the whole chain, then the sets from the first slot on, each by
    rank. k None: the trace's K, at most 32.
    """
    if not isinstance(sets, str):
        raise PolicyError(
            f"cape: the table of widths is {sets!r}, expected section or appendix "
            f"(of one width: sets:{sets})"
        )
    return TreePolicy(_name(f"cape:{sets}", k), "cape", k=k, sets=sets)


def sets(width: int, k: int | None = None) -> TreePolicy:
    """A chain of k tokens with `width` siblings each, at most 32 submitted: the baseline of
    CAPE.
    """
    return TreePolicy(_name(f"sets:{width}", k), "cape", k=k, sets=width)


def _name(policy: str, k: int | None) -> str:
    return policy if k is None else f"{policy},k={k}"


POLICIES = (
    PolicyKind(
        static, "trees", "Medusa, EAGLE", "none", "one tree for every round",
        "widths such as 4x2x1, eagle-25, medusa-63, or a file",
        examples=("static:2x1", "static:eagle-25"),
    ),
    PolicyKind(
        dynamic_tree, "trees", "EAGLE-2", "products of q",
        "the first nodes by cumulative confidence", "nodes are required",
        examples=("dynamic_tree:4",),
    ),
    PolicyKind(
        beams, "trees", "GLIDE, Table 3", "beam search", "the final hypotheses as one tree",
        examples=("beams",),
    ),
    PolicyKind(
        cape, "trees", "GLIDE, section 4.2", "max q",
        "a chain, each token with siblings by its confidence", "widths of the section",
        examples=("cape", "cape:appendix,k=3"),
    ),
    PolicyKind(
        sets, "trees", "GLIDE", "none", "a chain with equally many siblings",
        "the width is required", examples=("sets:3", "sets:2,k=5"),
    ),
)  # fmt: skip

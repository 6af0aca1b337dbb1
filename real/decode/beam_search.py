"""Beam search: its final hypotheses, submitted as one tree of their prefixes."""

import re

import numpy as np

from real.decode.tree_search import CandidateTree, SearchedTree
from simspec.tree.tree import MAX_NODES, TreeError


class BeamSearch(SearchedTree):
    """The `width` final hypotheses of `levels` tokens, as a tree of their prefixes (GLIDE, Table
    3)."""

    reads = ()

    def __init__(self, width: int, levels: int):
        super().__init__(width, levels)
        self.name, self.nodes = f"beam:{width},k={levels}", width * levels
        if self.nodes > MAX_NODES:
            raise TreeError(
                f"tree: {width} beams of {levels} tokens may have {self.nodes} nodes, over budget; "
                f"expected at most {MAX_NODES}"
            )

    def longest(self, K: int) -> int:
        """As of a `simspec.tree.policy.TreePolicy`: no recorded depth cuts it."""
        return 0

    def submitted(self, K: int) -> int:
        """Tree nodes that costs must price where drafts reach K."""
        return max(K, self.width * self.K)

    def rows(self, levels: np.ndarray) -> np.ndarray:
        """Rows that the drafter computes in rounds of so many levels."""
        return np.where(levels > 0, 1 + (levels - 1) * self.width, 0)

    def _chosen(self, tree: CandidateTree) -> list[int]:
        self.gap = tree.gap
        return tree.ends()


def parse_beam(text: str, K: int) -> BeamSearch:
    """The BeamSearch written as beam:width or beam:width,k=levels (default K); TreeError
    otherwise."""
    match = re.fullmatch(r"beam:(\d+)(?:,k=(\d+))?", text)
    if not match:
        raise TreeError(
            f"policy {text!r}: expected beam:width or beam:width,k=levels, such as beam:4,k=6"
        )
    levels = K if match[2] is None else int(match[2])
    if levels > K:
        raise TreeError(f"tree: {levels} levels are too deep, here drafts reach {K}; lower k")
    return BeamSearch(int(match[1]), levels)

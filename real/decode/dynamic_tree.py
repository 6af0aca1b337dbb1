"""Dynamic trees: the best nodes of a search by cumulative score (EAGLE-2)."""

from real.decode.tree_search import INFINITE_GAP, CandidateTree, SearchedTree
from simspec.tree.tree import MAX_NODES, TreeError


class DynamicTree(SearchedTree):
    """The first `nodes` rows by score of a search of that width and depth: EAGLE-2's reranked
    tree."""

    def __init__(self, width: int, levels: int, nodes: int):
        super().__init__(width, levels)
        if type(nodes) is not int or not 0 <= nodes <= MAX_NODES:
            raise TreeError(
                f"tree: {nodes!r} nodes are over budget; expected an integer from 0 to {MAX_NODES}"
            )
        self.nodes = nodes

    def _chosen(self, tree: CandidateTree) -> list[int]:
        order = tree.order()
        edge = [tree.score[row] for row in order[self.nodes - 1 : self.nodes + 1]]
        self.gap = min(tree.gap, edge[0] - edge[1] if len(edge) > 1 else INFINITE_GAP)
        return order[: self.nodes]

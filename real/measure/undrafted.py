"""Drafts that no drafter computed: what verification costs the target alone."""

import numpy as np

from real.decode.phase_timer import PhaseTimer
from real.draft import Draft
from simspec.tree.tree import Tree

_TOKENS = 1 << 16
"""Random tokens are drawn once, so that none is drawn while a round is timed."""


class Undrafted:
    """A plan that submits as many random tokens as `parent` has rows behind the first.

    A row follows `parent[row]`; -1 is row 0's. A chain has parent [-1, 0, 1, ..].
    """

    reader = None

    def __init__(self, parent: list[int], vocab: int, seed: int = 0):
        self.parent, self.next = parent, 0
        depth: list[int] = []
        for above in parent:
            depth.append(0 if above < 0 else depth[above] + 1)
        self.K = max(depth)
        self.token = np.random.default_rng(seed).integers(0, vocab, _TOKENS).tolist()

    def begin(self, drafter, rule, sequence, prefill, draws) -> None: ...

    def draft(
        self, last: int, position: int, round: int, cap: int, end_tokens, clock: PhaseTimer
    ) -> Draft:
        parent = self.parent if cap >= self.K else [-1]
        self.next = (self.next + len(parent)) % (_TOKENS - len(self.parent))
        token = self.token[self.next : self.next + len(parent) - 1]
        return Draft([last, *token], parent, 0, 0)

    def end(self, draft, verified, output) -> float:
        return float("inf")


def undrafted_chain(length: int, vocab: int) -> Undrafted:
    """A chain of `length` tokens."""
    return Undrafted(list(range(-1, length)), vocab)


def undrafted_tree(nodes: int, vocab: int) -> Undrafted:
    """The binary tree of `nodes` tokens."""
    return Undrafted([-1, *binary_tree(nodes).parent], vocab)


def binary_tree(nodes: int) -> Tree:
    """Two children of every node, level by level, up to `nodes` nodes."""
    return Tree(tuple(node // 2 for node in range(nodes)), tuple(node % 2 for node in range(nodes)))

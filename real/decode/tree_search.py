"""Tree search by cumulative confidence (EAGLE-2 §4.1, arXiv 2406.16858), and the plans that submit
a part of it."""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from real.decode.protocol import RoundStart, SequenceStart
from real.decode.verify import DRAFTING, VerifyResult
from real.draft import Draft, Drafter, check_grows
from real.model.target import TargetOutput
from real.sampling import Rule
from simspec.tree.tree import MAX_NODES, MAX_RANKS, TreeError

INFINITE_GAP = float("inf")
"""The gap of a choice without an alternative."""


def top_tokens(scores: Tensor, width: int) -> tuple[Tensor, list[float]]:
    """The `width` best tokens int64 `[n, width]` of scores `[n, vocab]`, and each row's smallest
    gap.

    Ties go to the smaller token. The gap is the smallest between neighbors among the best
    `width` + 1 scores. TreeError where `width` exceeds the vocabulary.
    """
    vocab = scores.shape[-1]
    if width > vocab:
        raise TreeError(
            f"tree: {width} children of a node are too wide for a vocabulary of {vocab}; "
            "expected at most as many"
        )
    value, token = scores.topk(min(width + 1, vocab), -1)
    # topk does not specify which of equal scores it takes
    if width < vocab and (value[:, width - 1] == value[:, width]).any():
        ranked = scores.sort(dim=-1, descending=True, stable=True)
        value, token = (t[:, : width + 1] for t in ranked)
    else:
        token, by = token.sort(-1)
        value, by = value.gather(-1, by).sort(dim=-1, descending=True, stable=True)
        token = token.gather(-1, by)
    gap = (value[:, :-1] - value[:, 1:]).nan_to_num(nan=INFINITE_GAP, posinf=INFINITE_GAP)
    smallest = gap.amin(-1).tolist() if gap.shape[1] else [INFINITE_GAP] * len(gap)
    return token[:, :width], smallest


@dataclass(frozen=True)
class CandidateTree:
    """All rows of a search; row 0 is the last committed token.

    | field | meaning |
    | --- | --- |
    | token, parent, depth | of each row |
    | score | cumulative score: sum of the drafter's log q along the row's path |
    | last | the best rows of the last level by score |
    | grown | rows that the drafter has passed, in its order |
    | gap | smallest gap between scores that decided which rows exist and which were expanded |
    """

    token: list[int]
    parent: list[int]
    depth: list[int]
    score: list[float]
    last: list[int]
    grown: list[int]
    gap: float

    def order(self) -> list[int]:
        """Rows 1 .. by descending score; ties go to the smaller depth, then the smaller row."""
        return sorted(
            range(1, len(self.token)), key=lambda row: (-self.score[row], self.depth[row], row)
        )

    def ends(self) -> list[int]:
        """Rows of the hypotheses with which a beam search of this width ends, in ascending
        order."""
        rows = set()
        for row in self.last:
            while row:
                rows.add(row)
                row = self.parent[row]
        return sorted(rows)


def search_tree(
    drafter: Drafter, rule: Rule, sequence: int, position: int, last: int, width: int, levels: int
) -> CandidateTree | None:
    """Expands `levels` levels: the `width` best children of row 0, then of the `width` best rows of
    each level.

    Children are the best by the rule's ranking, noise included; under the rejection rule nothing is
    drawn. A row's cumulative score sums log q at the rule's temperature, without noise, top-k or
    top-p. None where the drafter proposes nothing.
    """
    token, parent, depth, score, number = [last], [-1], [0], [0.0], {-1: -1}
    rows, gap = [0], INFINITE_GAP
    for level in range(levels):
        logits = drafter.grow([token[row] for row in rows], [number[parent[row]] for row in rows])
        if logits is None:
            return None
        for row in rows:
            number[row] = len(number) - 1
        children, gaps = top_tokens(
            rule.ranking(logits, sequence, [position + level] * len(rows)), width
        )
        log_q = (logits.double() / rule.temperature).log_softmax(-1).gather(-1, children)
        first = len(token)
        for row, tokens, added in zip(rows, children.tolist(), log_q.tolist()):
            token += tokens
            parent += [row] * width
            depth += [level + 1] * width
            score += [score[row] + value for value in added]
        ranked = sorted(range(first, len(token)), key=lambda row: -score[row])
        rows = ranked[:width]
        edge = score[rows[-1]] - score[ranked[width]] if len(ranked) > width else INFINITE_GAP
        gap = min(gap, *gaps, edge)
    return CandidateTree(token, parent, depth, score, rows, list(number)[1:], gap)


class SearchedTree(ABC):
    """Base of the plans that submit some rows of a `CandidateTree` of that width and depth.

    Under the rejection rule, too, its children are chosen, not drawn: `Draft.q` stays empty, and
    `real.decode.verify.rejection_sample` accepts child i with probability p(x_i) / (1 - p(x_1) - ..
    - p(x_{i-1})). So a node is accepted exactly with the probability that the target draws it.
    EAGLE-2 as released does so too: `qx = 1.0` in eagle/model/utils.py of SafeAILab/EAGLE.
    """

    reader = None
    nodes: int
    """Most rows submitted in a round; 0: plain decoding."""

    def __init__(self, width: int, levels: int):
        for name, value, largest in (("width", width, MAX_RANKS), ("levels", levels, 255)):
            if type(value) is not int or not 1 <= value <= largest:
                raise TreeError(
                    f"tree: {name} is {value!r}; expected an integer from 1 to {largest}"
                )
        self.width, self.K = width, levels

    def begin(self, start: SequenceStart) -> None:
        """Starts a sequence; ValueError for a drafter that grows no such tree."""
        self.drafter = check_grows(start.drafter, self.K)
        self.rule, self.sequence = start.rule, start.sequence

    def draft(self, start: RoundStart) -> Draft:
        """The chosen rows of a search after `last`, at most `cap` deep."""
        levels, self.gap = min(start.cap, self.K) if self.nodes else 0, INFINITE_GAP
        tree = None
        if levels:
            behind = start.position, start.last
            tree = search_tree(self.drafter, self.rule, self.sequence, *behind, self.width, levels)
        if tree is None:
            start.clock.lap(DRAFTING)
            return Draft([start.last], [-1], 0, 0)
        rows = [0, *self._chosen(tree)]
        place = {row: i for i, row in enumerate(rows)}
        start.clock.lap(DRAFTING)
        token = [tree.token[row] for row in rows]
        parent = [-1, *(place[tree.parent[row]] for row in rows[1:])]
        grown = tuple(place.get(row, -1) for row in tree.grown)
        return Draft(token, parent, levels, 0, grown=grown)

    def end(self, draft: Draft, verified: VerifyResult, output: TargetOutput) -> float:
        """The smallest gap of the round's decisions."""
        return self.gap

    @abstractmethod
    def _chosen(self, tree: CandidateTree) -> list[int]:
        """Rows to submit, parents before children; sets `gap`."""


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
        """See `simspec.tree.policy.TreePolicy`: 0, since no recorded depth cuts the search."""
        return 0

    def submitted(self, K: int) -> int:
        """Tree nodes that costs must price where drafts reach K."""
        return max(K, self.width * self.K)

    def rows(self, levels: np.ndarray) -> np.ndarray:
        """Rows that the drafter computes in rounds of `levels` levels."""
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

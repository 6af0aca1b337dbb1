"""Trees: drafts of a fixed shape, by cumulative confidence (EAGLE-2's rule), or what a beam search is left with."""

import re
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from real.decode.phase_timer import DRAFTING, PhaseTimer
from real.draft import Draft, Drafter, growing
from real.sampling import AddressedDraws, Rule
from simspec.rng import DRAFT
from simspec.tree import MAX_NODES, MAX_RANKS, Tree, TreeError

SURE = float("inf")


def best(scores: Tensor, width: int) -> tuple[Tensor, list[float]]:
    """The `width` best tokens int64 `[n, width]` of scores `[n, vocab]`, of equals the smaller, and each row's smallest gap.

    The gap is that between neighbours among the best `width` + 1: how near one of them is to another place. TreeError where there are
    fewer tokens than asked for.
    """
    vocab = scores.shape[-1]
    if width > vocab:
        raise TreeError(
            f"tree: {width} children of a node are too wide for a vocabulary of {vocab}; expected at most as many"
        )
    value, token = scores.topk(min(width + 1, vocab), -1)
    if (
        width < vocab and (value[:, width - 1] == value[:, width]).any()
    ):  # which of equals topk takes is not said
        value, token = (
            t[:, : width + 1] for t in scores.sort(dim=-1, descending=True, stable=True)
        )
    else:
        token, by = token.sort(-1)
        value, by = value.gather(-1, by).sort(dim=-1, descending=True, stable=True)
        token = token.gather(-1, by)
    gap = (value[:, :-1] - value[:, 1:]).nan_to_num(nan=SURE, posinf=SURE)
    return token[:, :width], gap.amin(-1).tolist() if gap.shape[1] else [SURE] * len(gap)


class Static:
    """One shape for every round, cut at the round's cap: a node of rank r carries its parent's (r + 1)-th best token.

    Best by the rule's scores at that text position. Under the rejection rule the children of a node are drawn from q without
    replacement, in the order of their rows, and the ranks tell nothing; where q has fewer tokens, later children and what hangs on
    them are left out. Its gap is the smallest between scores that decided on children of the committed path.
    """

    def __init__(self, tree: Tree):
        self.tree, self.K = tree, tree.levels
        self.cuts = [tree.cut(cap) for cap in range(self.K + 1)]

    def begin(
        self, drafter: Drafter, rule: Rule, sequence: int, prefill, draws: AddressedDraws
    ) -> None:
        """Starts a text; ValueError for a drafter that grows no such tree."""
        self.drafter, self.rule, self.sequence, self.draws = (
            growing(drafter, self.K),
            rule,
            sequence,
            draws,
        )

    def draft(
        self,
        last: int,
        position: int,
        round: int,
        cap: int,
        end_tokens: tuple[int, ...],
        clock: PhaseTimer,
    ) -> Draft:
        """The tree behind `last`, level by level; its end tokens stop nothing."""
        tree = self.cuts[min(cap, self.K)]
        children: dict[int, list[int]] = {}
        for node, above in enumerate(tree.parent):
            children.setdefault(above, []).append(node + 1)
        token, number, rows = {0: last}, {-1: -1}, [0] if len(tree) else []
        parent, rank, levels = (-1, *tree.parent), (0, *tree.rank), 0
        gap, drawn = {}, {}
        while rows:
            logits = self.drafter.grow(
                [token[row] for row in rows], [number[parent[row]] for row in rows]
            )
            if logits is None:
                break
            for row in rows:
                number[row] = len(number) - 1
            if self.rule.sampled:
                for row, q in zip(rows, self.rule.probs(logits)):
                    drawn[row] = q
                    token |= dict(zip(children[row], self._drawn(q, round, children[row])))
            else:
                scores = self.rule.scores(logits, self.sequence, [position + levels] * len(rows))
                kids, near = best(
                    scores, 1 + max(rank[child] for row in rows for child in children[row])
                )
                for row, ranked, each in zip(rows, kids.tolist(), near):
                    gap[row] = each
                    token |= {child: ranked[rank[child]] for child in children[row]}
            rows = [
                child
                for row in rows
                for child in children[row]
                if child in children and child in token
            ]
            levels += 1
        place = {row: i for i, row in enumerate(sorted(token))}
        self.gap = {place[row]: each for row, each in gap.items()}
        clock.lap(DRAFTING)
        above = [-1, *(place[parent[row]] for row in place if row)]
        return Draft(
            [token[row] for row in place],
            above,
            levels,
            0,
            {place[row]: q for row, q in drawn.items()},
        )

    def _drawn(self, q: Tensor, round: int, rows: list[int]):
        left = q.clone()
        for row in rows:
            if not bool((left > 0).any()):
                return
            token = self.draws.sample(left, round, row, DRAFT)
            left[token] = 0
            yield token

    def end(self, draft: Draft, verified, output) -> float:
        """After the round's pass: how near its decisions were."""
        return min((self.gap[row] for row in verified.path if row in self.gap), default=SURE)


@dataclass(frozen=True)
class Offer:
    """All that a search of some width and depth has offered; row 0 is the last committed token.

    | field | meaning |
    | --- | --- |
    | token, parent, depth | of each row |
    | score | sum of the drafter's log q along the path to it |
    | last | rows of the last level that would be searched on: its best by score |
    | gap | smallest gap between scores that decided which rows there are, and which were searched on |
    """

    token: list[int]
    parent: list[int]
    depth: list[int]
    score: list[float]
    last: list[int]
    gap: float

    def order(self) -> list[int]:
        """Rows 1 .. by score, the greatest first; of equals the less deep, then the earlier: a row comes behind its ancestors."""
        return sorted(
            range(1, len(self.token)), key=lambda row: (-self.score[row], self.depth[row], row)
        )

    def ends(self) -> list[int]:
        """Rows of the hypotheses that a beam search as wide is left with, in the order in which they were made."""
        kept = set()
        for row in self.last:
            while row:
                kept.add(row)
                row = self.parent[row]
        return sorted(kept)


def search(
    drafter: Drafter, rule: Rule, sequence: int, position: int, last: int, width: int, levels: int
) -> Offer | None:
    """Grows `levels` levels: the `width` best children of each row searched on, first of row 0, then of the `width` best of each level.

    Children are the best by the rule's scores, noise included; a row's score sums log q at the rule's temperature without noise, top-k
    or top-p (EAGLE-2 §4.1, arXiv 2406.16858). None where the drafter has nothing to offer.
    """
    token, parent, depth, score, number = [last], [-1], [0], [0.0], {-1: -1}
    rows, near = [0], SURE
    for level in range(levels):
        logits = drafter.grow([token[row] for row in rows], [number[parent[row]] for row in rows])
        if logits is None:
            return None
        for row in rows:
            number[row] = len(number) - 1
        kids, gaps = best(rule.scores(logits, sequence, [position + level] * len(rows)), width)
        added = (logits.double() / rule.temperature).log_softmax(-1).gather(-1, kids)
        first = len(token)
        for row, tokens, more in zip(rows, kids.tolist(), added.tolist()):
            token += tokens
            parent += [row] * width
            depth += [level + 1] * width
            score += [score[row] + each for each in more]
        ranked = sorted(range(first, len(token)), key=lambda row: -score[row])
        rows = ranked[:width]
        near = min(
            near, *gaps, score[rows[-1]] - score[ranked[width]] if len(ranked) > width else SURE
        )
    return Offer(token, parent, depth, score, rows, near)


class _Searched:
    def __init__(self, width: int, levels: int):
        for what, value, most in (("width", width, MAX_RANKS), ("levels", levels, 255)):
            if type(value) is not int or not 1 <= value <= most:
                raise TreeError(f"tree: {what} is {value!r}; expected an integer from 1 to {most}")
        self.width, self.K = width, levels

    def begin(
        self, drafter: Drafter, rule: Rule, sequence: int, prefill, draws: AddressedDraws
    ) -> None:
        """Starts a text; ValueError for the rejection rule, and for a drafter that grows no such tree."""
        if rule.sampled:
            what = "which nodes it submits depends on the tokens drawn, so that their law would not be q"
            raise ValueError(
                f"{type(self).__name__} does not run under the rejection rule: {what}; use a static tree or CAPE's sets"
            )
        self.drafter, self.rule, self.sequence = growing(drafter, self.K), rule, sequence

    def draft(
        self,
        last: int,
        position: int,
        round: int,
        cap: int,
        end_tokens: tuple[int, ...],
        clock: PhaseTimer,
    ) -> Draft:
        """The rows chosen of what was offered behind `last`, at most `cap` deep."""
        levels, self.gap = min(cap, self.K) if self.most else 0, SURE
        offer = (
            search(self.drafter, self.rule, self.sequence, position, last, self.width, levels)
            if levels
            else None
        )
        if offer is None:
            clock.lap(DRAFTING)
            return Draft([last], [-1], 0, 0)
        rows = [0, *self._chosen(offer)]
        place = {row: i for i, row in enumerate(rows)}
        clock.lap(DRAFTING)
        return Draft(
            [offer.token[row] for row in rows],
            [-1, *(place[offer.parent[row]] for row in rows[1:])],
            levels,
            0,
        )

    def end(self, draft: Draft, verified, output) -> float:
        """After the round's pass: how near its decisions were."""
        return self.gap


class Dynamic(_Searched):
    """The first `nodes` rows of a search of that width and depth, by score: EAGLE-2's dynamic tree with its reranking."""

    def __init__(self, width: int, levels: int, nodes: int):
        super().__init__(width, levels)
        if type(nodes) is not int or not 0 <= nodes <= MAX_NODES:
            raise TreeError(
                f"tree: {nodes!r} nodes are over budget; expected an integer from 0 to {MAX_NODES}"
            )
        self.most = nodes

    def _chosen(self, offer: Offer) -> list[int]:
        order = offer.order()
        edge = [offer.score[row] for row in order[self.most - 1 : self.most + 1]]
        self.gap = min(offer.gap, edge[0] - edge[1] if len(edge) > 1 else SURE)
        return order[: self.most]


def beam(text: str, K: int) -> "Beam":
    """The Beam written as beam:width or beam:width,k=levels, by default as deep as K; TreeError, one line, for anything else."""
    found = re.fullmatch(r"beam:(\d+)(?:,k=(\d+))?", text)
    if not found:
        raise TreeError(
            f"policy {text!r}: expected beam:width or beam:width,k=levels, such as beam:4,k=6"
        )
    levels = K if found[2] is None else int(found[2])
    if levels > K:
        raise TreeError(f"tree: {levels} levels are too deep, here drafts reach {K}; lower k")
    return Beam(int(found[1]), levels)


class Beam(_Searched):
    """Beam search: the `width` hypotheses of `levels` tokens that it ends with, as one tree of their prefixes (GLIDE's Table 3)."""

    most = True
    reads = ()

    def __init__(self, width: int, levels: int):
        super().__init__(width, levels)
        self.name = f"beam:{width},k={levels}"
        if width * levels > MAX_NODES:
            nodes = width * levels
            raise TreeError(
                f"tree: {width} beams of {levels} tokens may have {nodes} nodes, over budget; expected at most {MAX_NODES}"
            )

    def longest(self, K: int) -> int:
        """As of a `simspec.tree_policy.TreePolicy`: no recorded depth cuts it."""
        return 0

    def submitted(self, K: int) -> int:
        """Tree nodes that costs must price where drafts reach K."""
        return max(K, self.width * self.K)

    def rows(self, levels: np.ndarray) -> np.ndarray:
        """Rows that the drafter reads in rounds of so many levels."""
        return np.where(levels > 0, 1 + (levels - 1) * self.width, 0)

    def _chosen(self, offer: Offer) -> list[int]:
        self.gap = offer.gap
        return offer.ends()

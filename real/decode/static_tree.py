"""Static trees: one shape for every round."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from real.decode.tree_search import INFINITE_GAP, top_tokens
from real.decode.verify import DRAFTING, PhaseTimer, VerifyResult
from real.draft import Draft, Drafter, check_grows
from real.model.target import TargetOutput
from real.sampling import AddressedDraws, Rule
from simspec.numerics.rng import DRAFT
from simspec.tree.tree import Tree


class StaticTree:
    """One tree shape for every round, cut at the round's cap; a node of rank r carries its parent's
    (r + 1)-th best token.

    Best is by the rule's scores at that position. Under the rejection rule a node's children are
    drawn from q without replacement, in row order; ranks are ignored, and children for which q
    has no token left are omitted. The gap is the smallest between scores that decided on
    children of the committed path.
    """

    reader = None

    def __init__(self, tree: Tree):
        self.tree, self.K = tree, tree.levels
        self.cuts = [tree.cut(cap) for cap in range(self.K + 1)]

    def begin(
        self,
        drafter: Drafter,
        rule: Rule,
        sequence: int,
        prefill: TargetOutput,
        draws: AddressedDraws,
    ) -> None:
        """Starts a sequence; ValueError for a drafter that grows no such tree."""
        self.drafter = check_grows(drafter, self.K)
        self.rule, self.sequence, self.draws = rule, sequence, draws

    def draft(
        self,
        last: int,
        position: int,
        round: int,
        cap: int,
        end_tokens: tuple[int, ...],
        clock: PhaseTimer,
    ) -> Draft:
        """The tree behind `last`, level by level; drafted end tokens are expanded like any
        other."""
        tree = self.cuts[min(cap, self.K)]
        children: dict[int, list[int]] = {}
        for node, above in enumerate(tree.parent):
            children.setdefault(above, []).append(node + 1)
        token, number, rows = {0: last}, {-1: -1}, [0] if len(tree) else []
        parent, rank, levels = (-1, *tree.parent), (0, *tree.rank), 0
        gap: dict[int, float] = {}
        drawn: dict[int, Tensor] = {}
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
                width = 1 + max(rank[child] for row in rows for child in children[row])
                best, gaps = top_tokens(scores, width)
                for row, ranked, smallest in zip(rows, best.tolist(), gaps):
                    gap[row] = smallest
                    token |= {child: ranked[rank[child]] for child in children[row]}
            rows = [
                child
                for row in rows
                for child in children[row]
                if child in children and child in token
            ]
            levels += 1
        place = {row: i for i, row in enumerate(sorted(token))}
        self.gap = {place[row]: smallest for row, smallest in gap.items()}
        clock.lap(DRAFTING)
        return Draft(
            token=[token[row] for row in place],
            parent=[-1, *(place[parent[row]] for row in place if row)],
            computed=levels,
            line=0,
            q={place[row]: q for row, q in drawn.items()},
            grown=tuple(place[row] for row in list(number)[1:]),
        )

    def _drawn(self, q: Tensor, round: int, rows: Sequence[int]) -> Iterator[int]:
        left = q.clone()
        for row in rows:
            if not bool((left > 0).any()):
                return
            token = self.draws.sample(left, round, row, DRAFT)
            left[token] = 0
            yield token

    def end(self, draft: Draft, verified: VerifyResult, output: TargetOutput) -> float:
        """The smallest gap of the round's decisions."""
        gaps = (self.gap[row] for row in verified.path if row in self.gap)
        return min(gaps, default=INFINITE_GAP)

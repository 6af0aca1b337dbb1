"""Static trees of one shape for every round, and CAPE: a chain whose tokens have siblings.

CAPE: GLIDE and CAPE §4.2, arXiv 2402.02082."""

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from real.decode.features import GRIDS, FeatureReader
from real.decode.protocol import RoundStart, SequenceStart
from real.decode.tree_search import INFINITE_GAP, top_tokens
from real.decode.verify import DRAFTING, POLICY, VerifyResult
from real.draft import Draft, Step, check_grows
from real.model.target import TargetOutput
from simspec.numerics.rng import DRAFT
from simspec.trace.quantization import decode, table
from simspec.tree.outcomes import sibling_counts
from simspec.tree.policy import MAX_SUBMITTED, TreePolicy
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

    def begin(self, start: SequenceStart) -> None:
        """Starts a sequence; ValueError for a drafter that grows no such tree."""
        self.drafter = check_grows(start.drafter, self.K)
        self.rule, self.sequence, self.draws = start.rule, start.sequence, start.draws

    def draft(self, start: RoundStart) -> Draft:
        """The tree after `last`, level by level; drafted end tokens are expanded like any
        other."""
        tree, position = self.cuts[min(start.cap, self.K)], start.position
        children: dict[int, list[int]] = {}
        for node, above in enumerate(tree.parent):
            children.setdefault(above, []).append(node + 1)
        token, number, rows = {0: start.last}, {-1: -1}, [0] if len(tree) else []
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
                    token |= dict(zip(children[row], self._drawn(q, start.round, children[row])))
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
        start.clock.lap(DRAFTING)
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


class Cape:
    """A chain of at most `k` tokens, then siblings of each: `simspec.tree.outcomes.sibling_counts`.

    The confidence that sets the count is quantized as in a recording. At most 32 tokens are
    submitted: the whole chain, then siblings from slot 0 on. Under the rejection rule siblings
    are drawn from q without replacement. The gap is as of `real.decode.tree_drafting.StaticTree`.
    """

    reader: FeatureReader
    gap: dict[int, float]  # of the round's sibling sets, by slot

    def __init__(self, sets: str | int = "section", k: int = MAX_SUBMITTED):
        TreePolicy("cape", "cape", k=k, sets=sets)  # validates both
        self.sets, self.K = sets, k

    def begin(self, start: SequenceStart) -> None:
        """Starts a sequence; ValueError for a drafter without logits."""
        drafter, rule = start.drafter, start.rule
        if self.sets != 0 and not drafter.has_logits:
            raise ValueError(
                f"drafter {drafter.name!r} has no logits, so no next best tokens; "
                "use a policy of chains"
            )
        self.drafter, self.rule = drafter, rule
        self.sequence, self.draws = start.sequence, start.draws
        names = ("confidence",) if isinstance(self.sets, str) else ()
        self.reader = FeatureReader(names, rule.temperature, drafter)
        self.reader.begin(start.prefill)

    def draft(self, start: RoundStart) -> Draft:
        """The chain after `last`, then its sets."""
        token, confidence, clock = [start.last], [], start.clock
        steps: list[Step] = []
        grid = table(GRIDS["confidence"])
        longest = min(start.cap, self.K)
        while len(steps) < longest and not (steps and token[-1] in start.end_tokens):
            step = self.drafter.next()
            clock.lap(DRAFTING)
            if step is None:
                break
            token.append(step.token)
            if self.reader.names:
                confidence.append(decode(self.reader.read(step, len(steps))[0], grid)[0])
                clock.lap(POLICY)
            steps.append(step)
        k = len(steps)
        values = np.array(confidence) if self.reader.names else np.zeros(k)
        counts = sibling_counts(values, self.sets)
        parent, left, self.gap = list(range(-1, k)), MAX_SUBMITTED - k, {}
        for slot, (step, wanted) in enumerate(zip(steps, counts.tolist())):
            width = min(wanted, left)
            left -= width
            if width:
                siblings = self._siblings(step, slot, start, width, len(token))
                token += siblings
                parent += [slot] * len(siblings)
        clock.lap(DRAFTING)
        return Draft(token, parent, k, k)

    def _siblings(
        self, step: Step, slot: int, start: RoundStart, width: int, row: int
    ) -> list[int]:
        """Up to `width` tokens other than the step's own, for rows `row`, `row` + 1, ..."""
        assert step.logits is not None  # checked by begin
        if not self.rule.sampled:
            scores = self.rule.scores(step.logits[None], self.sequence, [start.position + slot])
            ranked, gap = top_tokens(scores, width + 1)
            self.gap[slot] = gap[0]
            return [token for token in ranked[0].tolist() if token != step.token][:width]
        left = self.rule.probs(step.logits[None])[0].clone()
        drawn: list[int] = []
        left[step.token] = 0
        while len(drawn) < width and bool((left > 0).any()):
            drawn.append(self.draws.sample(left, start.round, row + len(drawn), DRAFT))
            left[drawn[-1]] = 0
        return drawn

    def end(self, draft: Draft, verified: VerifyResult, output: TargetOutput) -> float:
        """The smallest gap of the round's decisions."""
        self.reader.learn(output, verified.path)
        gaps = (self.gap[row] for row in verified.path if row in self.gap)
        return min(gaps, default=INFINITE_GAP)

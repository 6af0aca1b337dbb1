"""CAPE: a chain whose tokens have siblings, more where the drafter is less confident.

GLIDE and CAPE §4.2, arXiv 2402.02082.
"""

import numpy as np

from real.decode.features import GRIDS, FeatureReader
from real.decode.tree_search import INFINITE_GAP, top_tokens
from real.decode.verify import DRAFTING, POLICY, PhaseTimer, VerifyResult
from real.draft import Draft, Drafter, Step
from real.model.target import TargetOutput
from real.sampling import AddressedDraws, Rule
from simspec.numerics.rng import DRAFT
from simspec.trace.quantization import decode, table
from simspec.tree.outcomes import sibling_counts
from simspec.tree.policy import MAX_SUBMITTED, TreePolicy


class Cape:
    """A chain of at most `k` tokens, then siblings of each: `simspec.tree.outcomes.sibling_counts`.

    The confidence that sets the count is quantized as in a recording. At most 32 tokens are
    submitted: the whole chain, then siblings from slot 0 on. Under the rejection rule siblings
    are drawn from q without replacement. The gap is as of `real.decode.static_tree.StaticTree`.
    """

    reader: FeatureReader
    gap: dict[int, float]  # of the round's sibling sets, by slot

    def __init__(self, sets: str | int = "section", k: int = MAX_SUBMITTED):
        TreePolicy("cape", "cape", k=k, sets=sets)  # validates both
        self.sets, self.K = sets, k

    def begin(
        self,
        drafter: Drafter,
        rule: Rule,
        sequence: int,
        prefill: TargetOutput,
        draws: AddressedDraws,
    ) -> None:
        """Starts a sequence; ValueError for a drafter without logits."""
        if self.sets != 0 and not drafter.has_logits:
            raise ValueError(
                f"drafter {drafter.name!r} has no logits, so no next best tokens; "
                "use a policy of chains"
            )
        self.drafter, self.rule, self.sequence, self.draws = drafter, rule, sequence, draws
        names = ("confidence",) if isinstance(self.sets, str) else ()
        self.reader = FeatureReader(names, rule.temperature, drafter)
        self.reader.begin(prefill)

    def draft(
        self,
        last: int,
        position: int,
        round: int,
        cap: int,
        end_tokens: tuple[int, ...],
        clock: PhaseTimer,
    ) -> Draft:
        """The chain behind `last`, then its sets."""
        token, confidence = [last], []
        steps: list[Step] = []
        grid = table(GRIDS["confidence"])
        while len(steps) < min(cap, self.K) and not (steps and token[-1] in end_tokens):
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
                siblings = self._siblings(step, slot, position, round, width, len(token))
                token += siblings
                parent += [slot] * len(siblings)
        clock.lap(DRAFTING)
        return Draft(token, parent, k, k)

    def _siblings(
        self, step: Step, slot: int, position: int, round: int, width: int, row: int
    ) -> list[int]:
        """Up to `width` tokens other than the step's own, for rows `row`, `row` + 1, ..."""
        assert step.logits is not None  # checked by begin
        if not self.rule.sampled:
            scores = self.rule.scores(step.logits[None], self.sequence, [position + slot])
            ranked, gap = top_tokens(scores, width + 1)
            self.gap[slot] = gap[0]
            return [token for token in ranked[0].tolist() if token != step.token][:width]
        left = self.rule.probs(step.logits[None])[0].clone()
        drawn: list[int] = []
        left[step.token] = 0
        while len(drawn) < width and bool((left > 0).any()):
            drawn.append(self.draws.sample(left, round, row + len(drawn), DRAFT))
            left[drawn[-1]] = 0
        return drawn

    def end(self, draft: Draft, verified: VerifyResult, output: TargetOutput) -> float:
        """The smallest gap of the round's decisions."""
        self.reader.learn(output, verified.path)
        gaps = (self.gap[row] for row in verified.path if row in self.gap)
        return min(gaps, default=INFINITE_GAP)

"""CAPE: a chain whose tokens have siblings, the more the less sure the drafter is (GLIDE and CAPE §4.2, arXiv 2402.02082)."""

import numpy as np

from real.decode.features import GRIDS, Reader
from real.decode.phase_timer import DRAFTING, POLICY, PhaseTimer
from real.decode.trees import SURE, best
from real.draft import Draft, Drafter
from real.sampling import AddressedDraws, Rule
from simspec.quantization import decode, table
from simspec.rng import DRAFT
from simspec.tree_outcomes import sibling_counts
from simspec.tree_policy import MAX_SUBMITTED, TreePolicy


class Cape:
    """A chain of `k` tokens, stopped as any chain, then each slot's next best tokens as siblings: `simspec.tree_policy.widths` of them.

    The confidence that sets the width is the one that a recording holds, on its grid. At most 32 tokens are submitted: the chain is
    kept whole, the sets are filled from the first slot on. Under the rejection rule the siblings are drawn from q without replacement
    behind the chain's token; a width depends on what stands before its slot alone. The gap is as that of `real.decode.trees.Static`.
    """

    def __init__(self, sets: str | int = "section", k: int = MAX_SUBMITTED):
        TreePolicy("cape", "cape", k=k, sets=sets)  # refuses what cannot be
        self.sets, self.K = sets, k

    def begin(
        self, drafter: Drafter, rule: Rule, sequence: int, prefill, draws: AddressedDraws
    ) -> None:
        """Starts a text; ValueError for a drafter without logits."""
        if self.sets != 0 and not drafter.has_logits:
            raise ValueError(
                f"drafter {drafter.name!r} has no logits, so no next best tokens; use a policy of chains"
            )
        self.drafter, self.rule, self.sequence, self.draws = drafter, rule, sequence, draws
        self.reader = Reader(
            ("confidence",) if isinstance(self.sets, str) else (), rule.temperature, drafter
        )
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
        token, steps, sure = [last], [], []
        while len(steps) < min(cap, self.K) and not (steps and token[-1] in end_tokens):
            step = self.drafter.next()
            clock.lap(DRAFTING)
            if step is None:
                break
            token.append(step.token)
            if self.reader.names:
                sure.append(
                    decode(self.reader.read(step, len(steps))[0], table(GRIDS["confidence"]))[0]
                )
                clock.lap(POLICY)
            steps.append(step)
        k = len(steps)
        wide = sibling_counts(np.array(sure) if self.reader.names else np.zeros(k), self.sets)
        parent, left, self.gap = list(range(-1, k)), MAX_SUBMITTED - k, {}
        for slot, (step, wanted) in enumerate(zip(steps, wide.tolist())):
            width = min(wanted, left)
            left -= width
            if width:
                more = self._siblings(step, slot, position, round, width, len(token))
                token += more
                parent += [slot] * len(more)
        clock.lap(DRAFTING)
        return Draft(token, parent, k, k)

    def _siblings(
        self, step, slot: int, position: int, round: int, width: int, row: int
    ) -> list[int]:
        """Up to `width` tokens other than the step's own; they go to rows `row`, `row` + 1, ..."""
        if not self.rule.sampled:
            ranked, gap = best(
                self.rule.scores(step.logits[None], self.sequence, [position + slot]), width + 1
            )
            self.gap[slot] = gap[0]
            return [token for token in ranked[0].tolist() if token != step.token][:width]
        left, drawn = self.rule.probs(step.logits[None])[0].clone(), []
        left[step.token] = 0
        while len(drawn) < width and bool((left > 0).any()):
            drawn.append(self.draws.sample(left, round, row + len(drawn), DRAFT))
            left[drawn[-1]] = 0
        return drawn

    def end(self, draft: Draft, verified, output) -> float:
        """After the round's pass: how near its decisions were."""
        self.reader.learn(output, verified.path)
        return min((self.gap[row] for row in verified.path if row in self.gap), default=SURE)

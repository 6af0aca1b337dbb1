"""A line: the draft of one chain, as long as a policy says."""

from real.decode.features import Reader
from real.decode.phase_timer import DRAFTING, POLICY, PhaseTimer
from real.draft import Draft, Drafter
from real.sampling import AddressedDraws, Rule
from simspec.stepper import Stepper


class ChainDrafting:
    """Asks the policy of `stepper` before every token, and the drafter for one more as long as it says so."""

    def __init__(self, stepper: Stepper):
        self.stepper, self.K = stepper, stepper.K

    def begin(
        self,
        drafter: Drafter,
        rule: Rule,
        sequence: int,
        prefill,
        draws: AddressedDraws | None = None,
    ) -> None:
        """Starts a text; PolicyError for a policy that anticipates, where drafts are drawn."""
        self.stepper.unforeseeing(rule.sampled)
        self.drafter, self.reader = (
            drafter,
            Reader(self.stepper.policy.reads, rule.temperature, drafter),
        )
        self.stepper.begin(sequence)
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
        """Drafts at most `cap` tokens behind `last`, the last of `position` new ones, and none behind an end token."""
        stepper, reader = self.stepper, self.reader
        token, parent = [last], [-1]
        while True:
            computed = len(token) - 1
            go, keep = stepper.ask(computed)
            clock.lap(POLICY)
            if not go or computed >= cap or (computed and token[-1] in end_tokens):
                break
            step = self.drafter.next()
            clock.lap(DRAFTING)
            if step is None:
                break
            token.append(step.token)
            parent.append(step.parent)
            if reader.names:
                stepper.see(computed, reader.read(step, computed)[0])
                clock.lap(POLICY)
        drafted = computed if keep or not computed else computed - 1
        return Draft(token[: drafted + 1], parent[: drafted + 1], computed, drafted)

    def end(self, draft: Draft, verified, output) -> float:
        """After the round's pass: the policy hears its outcome."""
        self.reader.learn(output, verified.path)
        self.stepper.end(draft.computed, len(draft.token) - 1, verified.accepted)
        return float("inf")

"""Chain drafting: one drafted token after another, as many as a policy asks for."""

from real.decode.features import FeatureReader
from real.decode.verify import DRAFTING, POLICY, PhaseTimer, VerifyResult
from real.draft import Draft, Drafter
from real.model.target import TargetOutput
from real.sampling import AddressedDraws, Rule
from simspec import Stepper


class ChainDrafting:
    """Asks the policy of `stepper` before every token whether to draft one more."""

    reader: FeatureReader

    def __init__(self, stepper: Stepper):
        self.stepper, self.K = stepper, stepper.K

    def begin(
        self,
        drafter: Drafter,
        rule: Rule,
        sequence: int,
        prefill: TargetOutput,
        draws: AddressedDraws | None = None,
    ) -> None:
        """Starts a sequence; PolicyError for a policy that anticipates under the rejection rule."""
        self.stepper.unforeseeing(rule.sampled)
        self.drafter = drafter
        self.reader = FeatureReader(self.stepper.policy.reads, rule.temperature, drafter)
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
        """Drafts at most `cap` tokens behind `last`, and none behind an end token."""
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

    def end(self, draft: Draft, verified: VerifyResult, output: TargetOutput) -> float:
        """Passes the round's outcome to the policy."""
        self.reader.learn(output, verified.path)
        self.stepper.end(draft.computed, len(draft.token) - 1, verified.accepted)
        return float("inf")

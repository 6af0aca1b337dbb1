"""The protocol between the decode loop and a plan, which makes each round's draft."""

from dataclasses import dataclass
from typing import Protocol

from real.decode.features import FeatureReader
from real.decode.verify import PhaseTimer, VerifyResult
from real.draft import Draft, Drafter
from real.model.target import TargetOutput
from real.sampling import AddressedDraws, Rule


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """A sequence that a plan will draft for.

    | field | meaning |
    | --- | --- |
    | drafter, rule | of all its rounds |
    | sequence | address of its draws |
    | prefill | the target's pass over all tokens of the prompt but the last |
    | draws | of the rejection rule |
    """

    drafter: Drafter
    rule: Rule
    sequence: int
    prefill: TargetOutput
    draws: AddressedDraws


@dataclass(frozen=True, slots=True)
class RoundStart:
    """A round that a plan drafts for.

    | field | meaning |
    | --- | --- |
    | last | the last committed token |
    | position | new tokens committed before the round |
    | round | its index in the sequence |
    | cap | most tokens of a path of the draft |
    | end_tokens | tokens after which a chain drafts nothing; () under the rejection rule |
    | clock | times phases of the round |
    """

    last: int
    position: int
    round: int
    cap: int
    end_tokens: tuple[int, ...]
    clock: PhaseTimer


class Plan(Protocol):
    """How each round's draft is made: a chain that a policy extends, or a tree.

    | member | meaning |
    | --- | --- |
    | K | depth of the deepest draft |
    | reader | reads the features of drafted tokens, from `begin` on; None where the plan reads \
none |
    """

    @property
    def K(self) -> int: ...

    @property
    def reader(self) -> FeatureReader | None: ...

    def begin(self, start: SequenceStart) -> None:
        """Starts a sequence; ValueError for a drafter or a rule that the plan does not support."""

    def draft(self, start: RoundStart) -> Draft:
        """Drafts at most `cap` deep after `last`."""

    def end(self, draft: Draft, verified: VerifyResult, output: TargetOutput) -> float:
        """Receives the round's outcome; returns its `DecodeResult.gap`."""

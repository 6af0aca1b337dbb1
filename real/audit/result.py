"""The result of an audit."""

import math
from dataclasses import asdict, dataclass

from real.audit.against_recording import RecordingComparison
from real.audit.sampling_tests import SamplingTests
from real.audit.tolerance import Tolerance


@dataclass(frozen=True)
class Divergence:
    """An emitted token that is not the target's pick.

    | field | meaning |
    | --- | --- |
    | index, sequence | of its sequence in the run; the address of that sequence's draws |
    | position, token, best | among the new tokens; as emitted; the target's pick |
    | gap, ulps, margin | as in `real.audit.score_gaps.ScoreGaps` |
    | excused | whether rounding explains the gap |
    """

    index: int
    sequence: int
    position: int
    token: int
    best: int
    gap: float
    ulps: float
    margin: float
    excused: bool


@dataclass(frozen=True)
class ImpossibleToken:
    """An emitted token of probability 0, excused if it lies at the edge of top-k or top-p."""

    index: int
    sequence: int
    position: int
    token: int
    excused: bool


@dataclass(frozen=True)
class AuditResult:
    """What an audit measured.

    | field | meaning |
    | --- | --- |
    | rule | greedy, coupled or rejection |
    | sequences, tokens | how many were audited |
    | tolerance | of the coarser of two dtypes, the run's and the audit's |
    | near_ties, ties | positions whose best two scores differ by the tolerance at most; by 0 |
    | divergences | tokens that are not the target's pick; greedy and coupled rules |
    | impossible | tokens of probability 0; coupled and rejection rules |
    | sampling | tests whether the other tokens are draws from p; None under the greedy rule |
    | recording | comparison with a recording; None without one |
    | alarms | one line for each failed check; empty for a clean run |
    """

    rule: str
    sequences: int
    tokens: int
    tolerance: Tolerance
    near_ties: int
    ties: int
    divergences: tuple[Divergence, ...]
    impossible: tuple[ImpossibleToken, ...]
    sampling: SamplingTests | None
    recording: RecordingComparison | None
    alarms: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether rounding and chance explain every difference."""
        return not self.alarms

    @property
    def first(self) -> tuple[Divergence, ...]:
        """The first divergence of each sequence; it may cause all later ones."""
        first: dict[int, Divergence] = {}
        for divergence in self.divergences:
            first.setdefault(divergence.index, divergence)
        return tuple(first.values())

    @property
    def failures(self) -> tuple[Divergence | ImpossibleToken, ...]:
        """Differences that rounding does not explain."""
        differences: list[Divergence | ImpossibleToken] = [*self.divergences, *self.impossible]
        return tuple(d for d in differences if not d.excused)

    def summary(self) -> dict:
        """The result as JSON values; infinite numbers become null."""
        return _finite(
            {
                "clean": self.clean,
                "alarms": self.alarms,
                "rule": self.rule,
                "sequences": self.sequences,
                "tokens": self.tokens,
                "tolerance": asdict(self.tolerance),
                "near_ties": self.near_ties,
                "ties": self.ties,
                "divergences": len(self.divergences),
                "largest_gap_nats": max((d.gap for d in self.divergences), default=0.0),
                "largest_gap_ulps": max((d.ulps for d in self.divergences), default=0.0),
                "first_divergences": [asdict(d) for d in self.first],
                "failures": [asdict(d) for d in self.failures],
                "impossible": len(self.impossible),
                "sampling": None if self.sampling is None else asdict(self.sampling),
                "recording": None if self.recording is None else asdict(self.recording),
            }
        )


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

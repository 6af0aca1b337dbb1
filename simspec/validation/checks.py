"""Checks and their shared false-alarm rate."""

from dataclasses import dataclass, field
from typing import Any, Literal

from simspec.validation import settings
from simspec.validation.bounds import interval
from simspec.validation.round_distribution import Array, RoundDistribution


@dataclass(frozen=True)
class Check:
    """One comparison: what was expected, what the simulator gave, and the interval allowed."""

    name: str
    expected: float
    got: float
    low: float
    high: float

    @property
    def ok(self) -> bool:
        slack = 1e-9 * max(1.0, abs(self.expected))
        return bool(self.low - slack <= self.got <= self.high + slack)

    def to_dict(self) -> dict[str, Any]:
        """The check as plain data; interval is [low, high]."""
        return {
            "name": self.name,
            "expected": float(self.expected),
            "got": float(self.got),
            "interval": [self.low, self.high],
            "ok": self.ok,
        }


@dataclass(frozen=True)
class PlannedCheck:
    """A comparison of sums over rounds, whose interval awaits its share of the risk.

    | kind | the reward's sum | got |
    | --- | --- | --- |
    | ratio | sum(x - expected y), of mean 0 if `expected` is right | sum(x) / sum(y) |
    | formula | the same; that the mean is 0 is a check of its own | the same |
    | speedup | seconds, a plain step taking 1 | tokens / seconds |

    weight: sum(y), or tokens. reward: a table [cap, drafted, accepted] as in `bounds.moments`.
    """

    name: str
    distribution: RoundDistribution
    reward: Array
    kind: Literal["ratio", "formula", "speedup"]
    expected: float
    got: float
    weight: float

    def checks(self, risk: float) -> list[Check]:
        """The comparison at this risk, and the exact one of a formula."""
        mean, low, high = interval(self.distribution, self.reward, settings.SEQUENCES, risk)
        weight, expected = self.weight, self.expected
        if self.kind == "speedup":
            return [Check(self.name, weight / mean, self.got, weight / high, weight / low)]
        low, high = expected + (low - mean) / weight, expected + (high - mean) / weight
        checks = [Check(self.name, expected, self.got, low, high)]
        if self.kind == "formula":
            got = expected + mean / weight
            name = f"{self.name}, by the exact distribution"
            checks.append(Check(name, expected, got, expected - 1e-9, expected + 1e-9))
        return checks


@dataclass
class CheckPlan:
    """Comparisons to evaluate at one shared risk, and exact ones that need none."""

    planned: list[PlannedCheck] = field(default_factory=list)
    exact: list[Check] = field(default_factory=list)

    def add_exact(self, name: str, expected: float, got: float, tolerance: float = 0.0) -> None:
        """Plan a comparison that must hold within the tolerance."""
        self.exact.append(Check(name, expected, got, expected - tolerance, expected + tolerance))

    def evaluate(self, false_alarm: float) -> list[Check]:
        """All checks; each planned one has its share of the false-alarm rate (Bonferroni)."""
        risk = false_alarm / max(len(self.planned), 1)
        return [check for planned in self.planned for check in planned.checks(risk)] + self.exact

"""Checks of the simulator: rules of rounds, bounds, and how a check is stated."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from simspec.trace.rounds import Rounds
from simspec.trace.trace import Trace
from simspec.validation import settings

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RoundDistribution:
    """Probabilities that decide the rounds of a memoryless policy on a sequence of `rows` tokens.

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | accept | float64[R, K, Z] | P(accepted at depth j + 1 from row t, given those before) |
    | | | z: the hidden state at position t + j; R = rows, or 1 if all rows are alike |
    | move | float64[Z, Z] | the hidden state's transitions from one position to the next |
    | start | float64[Z] | its distribution at position 0 |
    | go | float64[K] | P(a draft of j tokens continues to j + 1), j = 0 .. K - 1 |
    | rows | int | tokens of a sequence; a draft is capped at rows left - 1, no end tokens |
    """

    accept: Array
    move: Array
    start: Array
    go: Array
    rows: int

    @property
    def K(self) -> int:
        return len(self.go)

    def rounds(self, row: int) -> Array:
        """P[k, a, z, z']: a round from this row in state z drafts k, accepts a and ends in z'."""
        row_of_accept = row if len(self.accept) > 1 else 0
        return _rounds(self, min(self.K, self.rows - row - 1), row_of_accept)


@lru_cache(maxsize=512)  # distributions hash by identity
def _rounds(distribution: RoundDistribution, cap: int, row: int) -> Array:
    accept, move = distribution.accept[row], distribution.move
    Z = len(distribution.start)
    probability, reached = np.zeros((cap + 1, cap + 1, Z, Z)), np.eye(Z)
    drafts = np.cumprod([1.0, *distribution.go[:cap]])
    exactly = drafts - np.append(drafts[1:], 0.0)  # P(k = j): all that reach the cap stop there
    for a in range(cap + 1):
        probability[a, a] = exactly[a] * (reached @ move)
        if a < cap:
            missed = (reached * (1 - accept[a])) @ move
            probability[a + 1 :, a] = exactly[a + 1 :, None, None] * missed
            reached = (reached * accept[a]) @ move
    return probability


def broken_rounds(trace: Trace, rounds: Rounds, K: int) -> int:
    """Rounds that break a rule.

    | rule |
    | --- |
    | accepted = min(drafted, run[row]) |
    | 0 <= drafted, computed <= min(K, budget left - 1, depth[row]) |
    | drafted is computed, or one less: a token that was dropped |
    | the next round begins after the accepted tokens and the bonus token |
    """
    first, last = rounds.offset[:-1], rounds.offset[1:] - 1
    sequence = np.repeat(np.arange(trace.sequences), np.diff(rounds.offset))
    row, end = rounds.row, trace.offset[1:][sequence]
    left = trace.budget[sequence] - (row - trace.offset[sequence])
    cap = np.minimum(np.minimum(K, left - 1), trace.depth[row])
    follows = np.append(row[1:], 0)
    follows[last] = trace.offset[1:]
    wrong = rounds.accepted != np.minimum(rounds.drafted, trace.run[row])
    wrong |= (rounds.computed > cap) | (rounds.drafted < 0)
    wrong |= (rounds.drafted > rounds.computed) | (rounds.drafted < rounds.computed - 1)
    wrong |= np.minimum(row + rounds.accepted + 1, end) != follows
    wrong[first] |= row[first] != trace.offset[:-1]
    return int(wrong.sum())


_GRID = np.array([0.6, 0.75, 0.85, 0.95, 1.0, 1.05, 1.15, 1.3, 1.6])

Step = TypeVar("Step")


def moments(distribution: RoundDistribution, reward: Array) -> tuple[float, float]:
    """Exact mean and variance of the sum of reward[cap, k, a] over the rounds of one sequence.

    reward float64[K + 1, K + 1, K + 1]: cap = min(K, rows left - 1), k drafted, a accepted.
    """
    # mean and second moment of the sum still to come, by rows left
    ahead = np.zeros((distribution.rows + 1, len(distribution.start), 2))
    steps = _steps(distribution, lambda row: _weighted(distribution, reward, row))
    for left, cap, (by_a, gain, mean_gain, square) in steps:
        # After a accepted, left - 1 - a tokens remain: a = 0 .. cap counts down from left - 1.
        later = ahead[left - 1 - cap : left][::-1].reshape(-1, 2)
        ahead[left] = by_a @ later
        ahead[left, :, 0] += mean_gain
        ahead[left, :, 1] += square + gain @ later[:, 0]
    mean, second = distribution.start @ ahead[-1]
    return float(mean), max(float(second - mean * mean), 0.0)


def interval(
    distribution: RoundDistribution, reward: Array, sequences: int, risk: float
) -> tuple[float, float, float]:
    """(mean, low, high) of the sum over independent sequences; P(outside [low, high]) <= risk.

    Chernoff: for any h > 0, P(sum >= x) <= exp(n log M(h) - h x), M the moment generating function
    of one sequence's sum, exact by recursion. low and high are where the least bound over a grid of
    h is risk / 2. No normal approximation.
    """
    mean, variance = moments(distribution, reward)
    total = sequences * mean
    if variance <= 1e-14 * max(1.0, mean * mean):  # rounding of a sum that cannot vary
        return total, total, total
    reach, longest = math.log(2 / risk), distribution.rows * float(np.abs(reward).max())
    # Any h gives a valid bound: the grid surrounds the normal distribution's best one, where exp
    # does not overflow.
    h = np.minimum(_GRID * math.sqrt(2 * reach / (sequences * variance)), 300 / longest)
    both = np.concatenate((h, -h))
    bend = sequences * (_log_mgf(distribution, reward, both) - both * mean)
    away = (bend + reach) / np.concatenate((h, h))
    return total, total - float(away[len(h) :].min()), total + float(away[: len(h)].min())


def _weighted(
    distribution: RoundDistribution, reward: Array, row: int
) -> tuple[Array, Array, Array, Array]:
    # (probability, twice the gain) by what is accepted; mean and second moment of the gain
    probability = distribution.rounds(row)  # [k, a, z, z']
    cap, Z = len(probability) - 1, len(distribution.start)
    weight = reward[cap, : cap + 1, : cap + 1, None, None]
    first = probability * weight
    by_a, gain = (
        part.sum(axis=0).transpose(1, 0, 2).reshape(Z, -1) for part in (probability, first)
    )
    return by_a, 2 * gain, gain.sum(axis=1), (first * weight).sum(axis=(0, 1, 3))


def _steps(
    distribution: RoundDistribution, step_of: Callable[[int], Step]
) -> Iterator[tuple[int, int, Step]]:
    """(rows left, cap, step_of(row)) from the sequence's end; once per cap if rows are alike."""
    cached: dict[int, Step] = {}
    for left in range(1, distribution.rows + 1):
        cap = min(distribution.K, left - 1)
        key = cap if len(distribution.accept) == 1 else left
        if key not in cached:
            cached[key] = step_of(distribution.rows - left)
        yield left, cap, cached[key]


def _log_mgf(distribution: RoundDistribution, reward: Array, h: Array) -> Array:
    Z = len(distribution.start)
    future = np.ones((distribution.rows + 1, len(h), Z))

    def tilted(row: int) -> Array:
        probability = distribution.rounds(row)
        cap = len(probability) - 1
        tilt = np.exp(h[:, None, None] * reward[cap, : cap + 1, : cap + 1])
        return np.einsum("hka,kazy->hzay", tilt, probability).reshape(len(h), Z, -1)

    for left, cap, weight in _steps(distribution, tilted):
        later = future[left - 1 - cap : left][::-1].transpose(1, 0, 2).reshape(len(h), -1, 1)
        future[left] = (weight @ later)[:, :, 0]
    return np.log(future[-1] @ distribution.start)


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
    | formula | the same; a separate check tests that the mean is 0 | the same |
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

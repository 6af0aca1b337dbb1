"""Tests whether a run's rounds are distributed as replays, for the rejection rule."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from scipy.special import ndtri

from simspec.cost.model import CostModel
from simspec.numerics.stats import MIN_PROMPTS, monte_carlo_test, swap_distance_test, swap_test
from simspec.policy.policy import Policy
from simspec.replay.replay import replays
from simspec.trace.acceptance import chances
from simspec.trace.trace import Rounds, Trace

POWER = 0.99
"""Probability with which a loss of `RoundTests.detectable` is detected."""
OWN_TESTS = ("rounds", "accepted lengths", "rounds by prompt")
PAIRED_TESTS = ("recording: tokens a round", "recording: accepted lengths")
_POWER_REPLAYS, _POWER_STEPS = 16, 8


@dataclass(frozen=True)
class RoundTests:
    """Tests of a run's rounds, whose false alarms together have probability `risk` at most."""

    rounds: int  # R, of the run
    replayed: float  # mean R over replays of the run's own tokens
    spread: float  # standard deviation of R over these replays
    replays: int  # M, how many
    p_values: tuple[tuple[str, float], ...]  # ((test, p-value),)
    # risk, level: of a false alarm: of all tests together, and of each
    risk: float
    level: float
    # share of accepted tokens that must be lost to be detected with probability POWER, by the
    # normal approximation; inf: no loss is
    detectable: float

    @property
    def alarms(self) -> tuple[str, ...]:
        return tuple(name for name, p in self.p_values if p <= self.level)

    @property
    def equal(self) -> bool:
        """No alarm."""
        return not self.alarms


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of a comparison of rounds."""

    # policy, cost: what is replayed, and the costs that it observes
    policy: Policy
    cost: CostModel
    # replays take this seed and the next ones; none may be that of the run's own draws
    seed: int = 0
    risk: float = 1e-3  # probability of a false alarm of all tests together

    def replays(self, trace: Trace, count: int, first: int = 0) -> Iterator[Rounds]:
        """Replays `first`, ... of `count`."""
        seeds = ((self.seed + first + i) % (1 << 64) for i in range(count))
        return replays(trace, self.policy, seeds, self.cost)


def check_rounds(
    rounds: Rounds, own: Trace, settings: ReplaySettings, recording: Trace | None = None
) -> RoundTests:
    """Tests the rounds of a run under the rejection rule against its replays.

    Each of `round_p_values` is tested at level risk / their number. The false-alarm rate is exact
    at any number of rounds.
    """
    level = settings.risk / (len(OWN_TESTS) + len(PAIRED_TESTS) * _paired(settings, recording))
    p_values, totals = round_p_values(rounds, own, settings, math.ceil(1 / level), recording)
    mean, spread = float(totals.mean()), float(totals.std())
    return RoundTests(
        rounds=len(rounds),
        replayed=mean,
        spread=spread,
        replays=len(totals),
        p_values=tuple(p_values.items()),
        risk=settings.risk,
        level=level,
        detectable=_detectable(own, settings, mean, spread, level),
    )


def round_p_values(
    rounds: Rounds, own: Trace, settings: ReplaySettings, count: int, recording: Trace | None = None
) -> tuple[dict[str, float], np.ndarray]:
    """(p-value of each test, rounds of each replay float64[M]), by M = `count` replays or swaps.

    own is a recording of the run's own tokens: given them, run and replays are exchangeable.
    recording holds other tokens of the target after the same prompts, drawn independently: each
    prompt's rounds and one replay are exchangeable.

    | test | statistic | p-value |
    | --- | --- | --- |
    | rounds | abs(R - mean R) | `monte_carlo_test` over M replays |
    | accepted lengths | sum over a of (n_a - mean n_a)^2 / max(mean n_a, 1) | the same |
    | rounds by prompt | sum over s of (R_s - mean R_s)^2 / max(var R_s, 1/4) | the same |
    | recording: tokens a round | tokens / rounds of run and replay | `swap_test` |
    | recording: accepted lengths | sum over a of (n_a - n'_a)^2 / (n_a + n'_a) | \
`swap_distance_test` |

    n_a counts rounds that accept a tokens; means and variances are over the run and its replays.
    The last two need 8 prompts, and a policy that starts anew at each.
    """
    by_prompt, lengths = _counts(chain([rounds], settings.replays(own, count)), own.K)
    totals = by_prompt.sum(1)
    p_values = {
        "rounds": monte_carlo_test(np.abs(totals - totals.mean())),
        "accepted lengths": monte_carlo_test(_pearson(lengths, lengths.mean(0), 1.0)),
        "rounds by prompt": monte_carlo_test(_pearson(by_prompt, by_prompt.var(0), 0.25)),
    }
    if _paired(settings, recording):
        assert recording is not None
        (replayed,) = settings.replays(recording, 1, count)
        p_values |= _paired_tests(rounds, own, replayed, recording, count)
    return p_values, totals[1:]


def _paired(settings: ReplaySettings, recording: Trace | None) -> bool:
    """Whether the run is compared with the recording, prompt by prompt."""
    enough = recording is not None and recording.sequences >= MIN_PROMPTS
    return enough and settings.policy.scope == "sequence"


def _counts(sets: Iterable[Rounds], K: int) -> tuple[np.ndarray, np.ndarray]:
    """float64[n, S] rounds by prompt, and float64[n, K + 1] rounds by accepted length."""
    by_prompt, lengths = [], []
    for rounds in sets:
        by_prompt.append(np.diff(rounds.offset))
        lengths.append(np.bincount(rounds.accepted, minlength=K + 1))
    return np.array(by_prompt, np.float64), np.array(lengths, np.float64)


def _pearson(values: np.ndarray, scale: np.ndarray, least: float) -> np.ndarray:
    """sum over columns of (value - mean)^2 / max(scale, least), float64[1 + M]."""
    distance: np.ndarray = ((values - values.mean(0)) ** 2 / np.maximum(scale, least)).sum(1)
    return distance


def _paired_tests(
    rounds: Rounds, own: Trace, replayed: Rounds, recording: Trace, resamples: int
) -> dict[str, float]:
    a, b = _columns(rounds, own), _columns(replayed, recording)
    tokens, lengths = PAIRED_TESTS
    return {
        tokens: swap_test(a[:, :2], b[:, :2], lambda t: t[..., 0] / t[..., 1], resamples),
        lengths: swap_distance_test(a[:, 2:], b[:, 2:], _chi_square, resamples),
    }


def _columns(rounds: Rounds, trace: Trace) -> np.ndarray:
    """float64[S, 2 + K + 1]: each prompt's tokens, rounds, and rounds by accepted length."""
    counts = np.zeros((trace.sequences, trace.K + 1))
    prompt = np.repeat(np.arange(trace.sequences), np.diff(rounds.offset))
    np.add.at(counts, (prompt, rounds.accepted), 1)
    return np.column_stack((np.diff(trace.offset), np.diff(rounds.offset), counts))


def _chi_square(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """sum over the last axis of (a - b)^2 / (a + b); cells empty in both add nothing."""
    distance: np.ndarray = ((a - b) ** 2 / np.maximum(a + b, 1)).sum(-1)
    return distance


def _detectable(
    own: Trace, settings: ReplaySettings, mean: float, spread: float, level: float
) -> float:
    """The smallest loss x, at `chances` (1 - x), that moves the mean R out of reach of chance.

    mean R(x) - mean R >= (z(1 - level / 2) + z(POWER)) spread; x by bisection.
    """
    needed = mean + float(ndtri(1 - level / 2) + ndtri(POWER)) * spread
    assert own.ratio is not None
    chance, meta = chances(own.ratio, own.meta.rule), replace(own.meta, rule="rejection")

    def reached(x: float) -> bool:
        lossy = replace(own, ratio=chance * np.float32(1 - x), meta=meta)
        drawn = [len(rounds) for rounds in settings.replays(lossy, _POWER_REPLAYS)]
        return bool(np.mean(drawn) >= needed and np.mean(drawn) > mean)

    if not reached(1.0):
        return math.inf
    low, high = 0.0, 1.0
    for _ in range(_POWER_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high

"""simspec check: the simulator against closed forms, with controls that have to fail."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec import formulas, policies, synthetic
from simspec.cost.model import CostModel
from simspec.replay import metrics
from simspec.replay import replay as simulate
from simspec.trace.acceptance import drawn_trace
from simspec.trace.trace import Trace, broken_rounds

Array = NDArray[np.float64]

FALSE_ALARM = 1e-4
"""Probability that a correct simulator fails any check."""
RATIO = 0.1
DEEP, SEQUENCES, ROWS = 16, 1500, 64
ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
DECAYING = tuple(0.92 * 0.95**j for j in range(DEEP))
CONTINUE = (0.2, 0.5, 0.8, 0.95)
"""Means of a constant Beta posterior: the probability that a draft goes on."""
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
"""Draft lengths replayed on recordings."""


@dataclass(frozen=True)
class Check:
    """What was expected, what the simulator gave, and the interval that it has to lie in."""

    name: str
    expected: float
    got: float
    low: float
    high: float

    @property
    def ok(self) -> bool:
        slack = 1e-9 * max(1.0, abs(self.expected))
        return bool(self.low - slack <= self.got <= self.high + slack)


def round_law(alphas: Sequence[float], go: Sequence[float]) -> Array:
    """float64[K + 1, K + 1]: P(k drafted, a accepted) of a round that no end cuts.

    `alphas` float [K]: acceptance at each depth given those before; `go` float [K]: probability
    that a draft of j tokens goes on to j + 1.
    """
    reached, drafts = np.cumprod([1.0, *alphas]), np.cumprod([1.0, *go])
    exactly = drafts - np.append(drafts[1:], 0.0)
    accepted = np.tril(np.broadcast_to(reached * (1 - np.append(alphas, 0.0)), (len(go) + 1,) * 2))
    np.fill_diagonal(accepted, reached)
    law: Array = exactly[:, None] * accepted
    return law


def interval(law: Array, reward: Array, rounds: float, risk: float) -> Callable[[int], float]:
    """N -> x, where P(sum of the rewards of N rounds >= x) <= risk, for rewards of mean 0.

    Chernoff's bound, x = (N log M(h) - log risk) / h, M the moment generating function of one
    round's reward. h is the best one at `rounds`, and has to be chosen before N is known: then
    exp(h sum - N log M(h)) is a martingale, whatever rounds before decided N.
    """
    deviation = math.sqrt(float((law * reward**2).sum()))
    if not deviation:
        return lambda N: 0.0
    h = math.sqrt(-2 * math.log(risk) / rounds) / deviation
    h = min(h, 300 / float(np.abs(reward).max()))
    log_m = math.log(float((law * np.exp(h * reward)).sum()))
    return lambda N: (N * log_m - math.log(risk)) / h


@dataclass(frozen=True)
class Comparison:
    """sum(x) / sum(y) over rounds that no end cuts, against a formula.

    law float64, counts int64 [K + 1, K + 1]: probability, and number, of rounds by drafted and
    accepted tokens; x, y float64: what such a round counts.
    """

    name: str
    law: Array
    counts: NDArray[np.int64]
    x: Array
    y: Array
    formula: float

    def checks(self, risk: float) -> list[Check]:
        """The formula against the law of a round, and the replayed ratio against the formula."""
        law, exact, weight = self.law, self.formula, float((self.counts * self.y).sum())
        got = float((law * self.x).sum() / (law * self.y).sum())
        reward, seen = self.x - got * self.y, int(self.counts.sum())
        nominal = SEQUENCES * ROWS / float((law * (np.arange(len(law)) + 1)).sum())
        above, below = (interval(law, sign * reward, nominal, risk / 2) for sign in (1, -1))
        low, high = exact - below(seen) / weight, exact + above(seen) / weight
        return [
            Check(f"{self.name}, by the law of a round", exact, got, exact - 1e-9, exact + 1e-9),
            Check(self.name, exact, float((self.counts * self.x).sum()) / weight, low, high),
        ]


def synthetic_checks(seed: int = 0, off: float = 0.0) -> list[Check]:
    """Replays of synthetic sequences against the formulas, at FALSE_ALARM for all together.

    `off` is added to the acceptance of the sequences alone: a planted fault.
    """
    planned: list[Comparison] = []
    rules: list[Check] = []
    for name, trace, policy, law, draws, ratios in _settings(seed, off):
        rounds, K = simulate.replay(trace, policy, draws), len(law) - 1
        broken = broken_rounds(trace, rounds, policy.longest(trace.K))
        rules.append(Check(f"{name}, rounds that break a rule", 0, broken, 0, 0))
        left = np.repeat(trace.offset[1:], np.diff(rounds.offset)) - rounds.row
        drafted, accepted = (
            np.clip(column[left > K], 0, K) for column in (rounds.drafted, rounds.accepted)
        )
        counts = np.zeros((K + 1, K + 1), np.int64)
        np.add.at(counts, (drafted, accepted), 1)
        k, a = np.indices(law.shape).astype(np.float64)
        for label, (ratio, formula) in ratios.items():
            x, y = (part + 0 * k for part in ratio(k, a))
            planned.append(Comparison(f"{name}, {label}", law, counts, x, y, float(formula)))
    risk = FALSE_ALARM / len(planned)
    return [check for one in planned for check in one.checks(risk)] + rules


def _settings(seed: int, off: float) -> Iterator[tuple[Any, ...]]:
    """(name, trace, policy, law of a round, seed, {label: ((k, a) -> (x, y), formula)})."""
    seeds = iter(np.random.SeedSequence(seed).generate_state(128, np.uint64).tolist())

    def sequences(*alphas: float) -> Trace:
        given = [min(alpha + off, 1.0) for alpha in alphas]
        return synthetic.decaying(given, sequences=SEQUENCES, rows=ROWS, seed=next(seeds))

    def speed(k: Array, a: Array) -> tuple[Any, Any]:
        return a + 1, 1 + RATIO * k

    def tokens(k: Array, a: Array) -> tuple[Any, Any]:
        return a + 1, 1

    lengths = range(1, DEEP + 1)
    for alpha in ALPHAS:
        trace = sequences(*[alpha] * DEEP)
        for K in lengths:
            law, mean = round_law([alpha] * K, [1.0] * K), formulas.expected_committed(alpha, K)
            eq_14 = formulas.eesd_speedup((mean - 1) / K, 1 - 1 / mean, RATIO)
            of = {
                "tokens a round, formula 1": (tokens, mean),
                "speedup": (speed, formulas.expected_speedup(alpha, K, RATIO)),
                "speedup, Eq. 14": (speed, eq_14),
            }
            yield f"iid: alpha={alpha:g} fixed:{K}", trace, policies.fixed(K), law, 0, of
    trace = sequences(*DECAYING)
    for K in lengths:
        mean = formulas.depthwise_committed(DECAYING[:K])
        law, of = round_law(DECAYING[:K], [1.0] * K), {"tokens a round, formula 2": (tokens, mean)}
        yield f"decaying: fixed:{K}", trace, policies.fixed(K), law, 0, of
    for alpha, go, K in product(ALPHAS[1::2], CONTINUE, (3, DEEP)):
        law = round_law([alpha] * K, [1.0] + [go] * (K - 1))
        # 1e12 pseudo-counts: what a sequence adds moves the mean by 1e-10 at most
        policy = policies.beta_ts(alpha0=go * 1e12, beta0=(1 - go) * 1e12, K=K)
        of = {
            "drafted": (lambda k, a: (k, 1), formulas.geometric_drafted(go, K)),
            "accepted": (lambda k, a: (a, 1), formulas.geometric_accepted(alpha, go, K)),
            "tokens": (tokens, formulas.geometric_committed(alpha, go, K)),
            "speedup": (speed, formulas.geometric_speedup(alpha, go, K, RATIO)),
        }
        name = f"beta_ts, constant posterior: alpha={alpha:g} go={go:g} K={K}"
        yield name, sequences(*[alpha] * DEEP), policy, law, next(seeds), of


def recording_checks(name: str, trace: Trace, seed: int) -> list[Check]:
    """The rules of rounds, and Eq. 13, for several policies.

    Eq. 13 is exact but for sequences that an accepted end token closed, one target step each.
    """
    cost = CostModel.from_ratio(RATIO, trace.K)
    used = [policies.fixed(k) for k in LENGTHS if k <= trace.K]
    used += [policies.beta_ts(), policies.hf_heuristic()]
    if "confidence" in dict(trace.meta.features):
        used += [policies.confidence(0.5), policies.confidence(0.5, inclusive=False)]
    trace = drawn_trace(trace, seed)  # under the rejection rule: the accepted lengths of a draw
    checks = []
    for policy in used:
        rounds = simulate.replay(trace, policy, seed, cost)
        found = metrics.summary(rounds, trace, cost)
        assert isinstance(found, metrics.Metrics)
        broken = broken_rounds(trace, rounds, policy.longest(trace.K))
        last = rounds.offset[1:] - 1
        ended = int((rounds.row[last] + rounds.accepted[last] >= trace.offset[1:]).sum())
        eq_13 = RATIO * found.computed + found.tokens  # where v_d = 0 hides how many were computed
        if found.accepted > min(found.drafted, found.tokens):
            eq_13 = 0.0  # no rounds are like that: a check that fails, not an error
        elif found.accepted:
            eq_13 = float(formulas.eesd_time(found.v_d, found.r_d, found.tokens, RATIO, 1.0))
        bounds = eq_13 * (1 - 1e-9), eq_13 * (1 + 1e-9)
        checks += [
            Check(f"{name}: {policy.name}, rounds that break a rule", 0, broken, 0, 0),
            Check(f"{name}: {policy.name}, Eq. 13", eq_13, found.seconds - ended, *bounds),
        ]
    return checks


def controls(seed: int = 0) -> dict[str, bool]:
    """{planted fault: whether a check fails on it}."""
    trace = synthetic.iid(0.7, 9, 40, 6, seed=seed)
    rounds = simulate.replay(trace, policies.fixed(3))
    lucky = replace(rounds, accepted=np.minimum(rounds.accepted + 1, rounds.drafted))
    return {
        "acceptance 0.01 higher than stated": not all(c.ok for c in synthetic_checks(seed, 0.01)),
        "an accepted token too many": broken_rounds(trace, lucky, 3) > 0,
    }

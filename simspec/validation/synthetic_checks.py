"""Checks of replays of synthetic sequences against the exact distribution of their rounds."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simspec import formulas, policies, synthetic
from simspec.cost.model import CostModel
from simspec.numerics.rng import check_seed
from simspec.policy.policy import Go, Policy, observe_nothing
from simspec.replay import metrics
from simspec.replay import replay as simulate
from simspec.trace.rounds import Rounds
from simspec.trace.trace import Trace
from simspec.validation import settings
from simspec.validation.checks import (
    Array,
    Check,
    CheckPlan,
    PlannedCheck,
    RoundDistribution,
    broken_rounds,
    moments,
)


def plan(seed: int = 0) -> CheckPlan:
    """Replay synthetic sequences of every distribution and plan what to compare."""
    seeds = iter(np.random.SeedSequence(check_seed(seed)).generate_state(64, np.uint64).tolist())
    checks, K = CheckPlan(), settings.DEEP

    def trace(kind: Callable[..., Trace], *parameters: Any, **options: Any) -> Trace:
        size = {"sequences": settings.SEQUENCES, "rows": settings.ROWS}
        return kind(*parameters, **size, **options, seed=next(seeds))

    for alpha in settings.ALPHAS:
        _iid(checks, alpha, trace(synthetic.iid, alpha, K=K))
    for alpha in settings.DROPPED_ALPHAS:
        _dropping(checks, alpha, trace(synthetic.iid, alpha, K=K))
    _decaying(checks, trace(synthetic.decaying, settings.DECAYING))
    _switching(checks, trace(synthetic.switching, *settings.SWITCHING, K=K))
    _drifting(checks, trace(synthetic.drifting, *settings.DRIFTING, K=K))
    for alpha in settings.CONSTANT_ALPHAS:
        _constant_posterior(checks, alpha, trace(synthetic.iid, alpha, K=K), next(seeds))
    return checks


def _distribution(
    accept: ArrayLike, go: Sequence[float], move: ArrayLike = ((1.0,),), start: ArrayLike = (1.0,)
) -> RoundDistribution:
    return RoundDistribution(
        np.asarray(accept, dtype=np.float64)[:, : len(go)],
        np.array(move),
        np.array(start),
        np.asarray(go, dtype=np.float64),
        settings.ROWS,
    )


def _iid(plan: CheckPlan, alpha: float, trace: Trace) -> None:
    for K in range(1, settings.DEEP + 1):
        distribution = _distribution(np.full((1, K, 1), alpha), [1.0] * K)
        name = f"iid: alpha={alpha:g} fixed:{K}"
        comparison = ReplayComparison(plan, name, distribution, trace, policies.fixed(K))
        figures = comparison.add_common(settings.RATIOS)
        tables = comparison.tables
        committed, cost = tables.a + 1, 1 + 0.1 * tables.k
        tokens = formulas.expected_committed(alpha, K)
        comparison.add_formula("tokens per round, formula 1", committed, tables.one, tokens)
        speedup = formulas.expected_speedup(alpha, K, 0.1)
        comparison.add_formula("speedup at c=0.1, formula 1", committed, cost, speedup)
        r_d, v_d = 1 - 1 / tokens, (tokens - 1) / K
        eq_14 = formulas.eesd_speedup(v_d, r_d, 0.1)
        plan.add_exact(f"{name}, Eq. 14 is formula 1", speedup, eq_14, 1e-9)
    comparison.add_depths(figures, [alpha] * settings.DEEP)


def _dropping(plan: CheckPlan, alpha: float, trace: Trace) -> None:
    """k + 1 tokens computed and k submitted, as by a threshold that drops the token below it."""
    for k in settings.SOME_LENGTHS[:-1]:
        distribution = _distribution(np.full((1, k + 1, 1), alpha), [1.0] * k + [0.0])
        name = f"iid: alpha={alpha:g} {k} of {k + 1} computed tokens submitted"
        comparison = ReplayComparison(plan, name, distribution, trace, drop_last(k))
        tables = comparison.tables
        comparison.computed = tables.cap
        figures = comparison.add_common()
        tokens = formulas.expected_committed(alpha, k)
        comparison.add_formula("tokens per round, formula 1", tables.a + 1, tables.one, tokens)
        eq_14 = float(formulas.eesd_speedup(figures.v_d, figures.r_d, 0.1))
        time = float(CostModel.from_ratio(0.1, trace.K).seconds(comparison.rounds).sum())
        plan.add_exact(f"{name}, Eq. 14 is the speedup", trace.rows / time, eq_14, 1e-9)


def drop_last(k: int) -> Policy:
    """Computes k + 1 tokens and submits k; all of a draft that something else cuts shorter."""
    return Policy(f"drop_last:{k}", _compute_one_more, observe_nothing, (float(k),), K=k + 1)


def _compute_one_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    return slot <= params[0], False


def _decaying(plan: CheckPlan, trace: Trace) -> None:
    alphas = settings.DECAYING
    for K in range(1, settings.DEEP + 1):
        distribution = _distribution(np.array(alphas)[None, :K, None], [1.0] * K)
        name = f"decaying: fixed:{K}"
        comparison = ReplayComparison(plan, name, distribution, trace, policies.fixed(K))
        figures = comparison.add_common()
        tables = comparison.tables
        tokens = formulas.depthwise_committed(alphas[:K])
        comparison.add_formula("tokens per round, formula 2", tables.a + 1, tables.one, tokens)
    comparison.add_depths(figures, alphas)


def _switching(plan: CheckPlan, trace: Trace) -> None:
    alphas, switch = (np.array(pair) for pair in settings.SWITCHING)
    move = [[1 - switch[0], switch[0]], [switch[1], 1 - switch[1]]]
    start = switch[::-1] / switch.sum()
    for K in settings.SOME_LENGTHS:
        accept = np.broadcast_to(alphas, (1, K, 2))
        distribution = _distribution(accept, [1.0] * K, move, start)
        name = f"switching: fixed:{K}"
        ReplayComparison(plan, name, distribution, trace, policies.fixed(K)).add_common(
            settings.RATIOS
        )
        one, d = RewardTables(K).one, distribution
        shorter, longer = (
            moments(RoundDistribution(d.accept, d.move, d.start, d.go, rows), one)[0]
            for rows in (300, 400)
        )
        plan.add_exact(
            f"{name}, tokens per round of long sequences",
            formulas.switching_committed(alphas, switch, K),
            100 / (longer - shorter),
            1e-4,
        )


def _drifting(plan: CheckPlan, trace: Trace) -> None:
    first, last = settings.DRIFTING
    accept = synthetic.drift(first, last, rows=settings.ROWS, K=settings.DEEP)[:, :, None]
    for K in settings.SOME_LENGTHS:
        distribution = _distribution(accept, [1.0] * K)
        name = f"drifting: fixed:{K}"
        ReplayComparison(plan, name, distribution, trace, policies.fixed(K)).add_common(
            settings.RATIOS
        )


def _constant_posterior(plan: CheckPlan, alpha: float, trace: Trace, seed: int) -> None:
    # 1e12 pseudo-counts: what a sequence adds moves the posterior mean by 1e-10 at most.
    for go in settings.CONTINUE:
        for K in (3, settings.DEEP):
            distribution = _distribution(np.full((1, K, 1), alpha), [1.0] + [go] * (K - 1))
            name = f"beta_ts with a constant posterior: alpha={alpha:g} continue={go:g} K={K}"
            policy = policies.beta_ts(alpha0=go * 1e12, beta0=(1 - go) * 1e12, K=K)
            comparison = ReplayComparison(plan, name, distribution, trace, policy, seed)
            comparison.add_common()
            tables = comparison.tables
            for label, x, y, expected in (
                ("drafted per round", tables.k, tables.one, formulas.geometric_drafted(go, K)),
                (
                    "accepted per round",
                    tables.a,
                    tables.one,
                    formulas.geometric_accepted(alpha, go, K),
                ),
                (
                    "tokens per round",
                    tables.a + 1,
                    tables.one,
                    formulas.geometric_committed(alpha, go, K),
                ),
                (
                    "speedup at c=0.2",
                    tables.a + 1,
                    1 + 0.2 * tables.k,
                    formulas.geometric_speedup(alpha, go, K, 0.2),
                ),
            ):
                comparison.add_formula(f"{label}, geometric stop", x, y, expected)


def optimal_length_checks(checks: Sequence[Check]) -> list[Check]:
    """Whether the replayed speedups at `optimal_k` are within the error of the best.

    At cost ratio c the speedup of fixed K is its tokens per round over 1 + c K. With each K's
    tokens per round inside its interval, none of these can fail: they share the false-alarm rate
    of `CheckPlan.evaluate` and add nothing to it.
    """
    by_name = {check.name: check for check in checks}
    results = []
    for alpha in settings.ALPHAS:
        tokens = [
            by_name[f"iid: alpha={alpha:g} fixed:{K}, tokens per round, formula 1"]
            for K in range(1, settings.DEEP + 1)
        ]
        got = np.array([1.0, *(check.got for check in tokens)])
        up = np.array([0.0, *(check.high - check.expected for check in tokens)])
        down = np.array([0.0, *(check.expected - check.low for check in tokens)])
        for c in settings.RATIOS:
            cost = 1 + c * np.arange(settings.DEEP + 1)
            best = int(formulas.optimal_k(alpha, c, settings.DEEP))
            low = ((got - up) / cost).max() - down[best] / cost[best]
            top = (got / cost).max()
            name = f"optimal_k: alpha={alpha:g} c={c:g}, speedup at {best}"
            results.append(Check(name, top, (got / cost)[best], low, top))
    return results


class RewardTables:
    """Rewards float64[K + 1, K + 1, K + 1] of [cap, drafted, accepted].

    k: drafted; a: accepted; one: 1; whole: 1 where the sequence's end does not cap the draft.
    """

    def __init__(self, K: int) -> None:
        self.cap, self.k, self.a = np.indices((K + 1,) * 3).astype(np.float64)
        self.one, self.whole = np.ones_like(self.k), (self.cap == K).astype(np.float64)


class ReplayComparison:
    """A policy replayed on a synthetic trace; its methods plan checks under `name`.

    computed: the reward that counts computed tokens; a policy that drops some sets its own.
    """

    def __init__(
        self, plan: CheckPlan, name: str, distribution: RoundDistribution,
        trace: Trace, policy: Policy, seed: int = 0,
    ) -> None:  # fmt: skip
        self.plan, self.name, self.distribution, self.trace = plan, name, distribution, trace
        self.tables = RewardTables(distribution.K)
        self.computed: Array = self.tables.k
        self.rounds: Rounds = simulate.replay(trace, policy, seed)
        left = np.repeat(trace.offset[1:], np.diff(self.rounds.offset)) - self.rounds.row
        self.caps: NDArray[np.int64] = np.minimum(distribution.K, left - 1)

    def add_common(self, ratios: Sequence[float] = (0.1,)) -> metrics.Metrics:
        """Plan the rules of a round, v_d and speedups, which hold for every policy; the figures."""
        K, trace, tables = self.distribution.K, self.trace, self.tables
        broken = broken_rounds(trace, self.rounds, K)
        self.plan.add_exact(f"{self.name}, rounds that break a rule", 0, broken)
        cost = CostModel.from_ratio(ratios[0], trace.K)
        figures = metrics.summary(self.rounds, trace, cost)
        assert isinstance(figures, metrics.Metrics)
        computed = self.computed
        v_d = moments(self.distribution, tables.a)[0] / moments(self.distribution, computed)[0]
        self._add_ratio("v_d", (tables.a, computed), v_d, figures.v_d, figures.computed)
        for c in ratios:
            seconds = float(CostModel.from_ratio(c, trace.K).seconds(self.rounds).sum())
            self.plan.planned.append(
                PlannedCheck(
                    f"{self.name}, speedup at c={c:g}",
                    self.distribution,
                    1 + c * computed,
                    "speedup",
                    float("nan"),
                    trace.rows / seconds,
                    settings.SEQUENCES * self.distribution.rows,
                )
            )
        return figures

    def add_depths(self, figures: metrics.Metrics, alphas: Sequence[float]) -> None:
        """Plan acceptance at each depth that rounds are expected to reach 100 times."""
        tables = self.tables
        for j, alpha in enumerate(alphas):
            tried, taken = ((tables.k > j) & (tables.a >= j)) * 1.0, (tables.a > j) * 1.0
            # chosen by the distribution, not by the outcome
            if settings.SEQUENCES * moments(self.distribution, tried)[0] >= 100:
                got, weight = figures.accept_by_depth[j], self._sum(tried)
                label = f"acceptance at depth {j + 1}"
                self._add_ratio(label, (taken, tried), alpha, got, weight, formula=True)

    def add_formula(self, label: str, x: Array, y: Array, expected: float) -> None:
        """Plan sum(x) / sum(y) against a formula, on rounds that no sequence's end cut."""
        x, y = x * self.tables.whole, y * self.tables.whole
        weight = self._sum(y)
        self._add_ratio(label, (x, y), expected, self._sum(x) / weight, weight, formula=True)

    def _add_ratio(
        self, label: str, parts: tuple[Array, Array], expected: float, got: float, weight: float,
        formula: bool = False,
    ) -> None:  # fmt: skip
        x, y = parts
        self.plan.planned.append(
            PlannedCheck(
                f"{self.name}, {label}",
                self.distribution,
                x - expected * y,
                "formula" if formula else "ratio",
                float(expected),
                float(got),
                float(weight),
            )
        )

    def _sum(self, table: Array) -> float:
        """The table's sum over rounds; what lies outside is read at its edge (the rules fail)."""
        parts = (self.caps, self.rounds.drafted, self.rounds.accepted)
        top = table.shape[0] - 1
        return float(table[tuple(np.clip(part, 0, top) for part in parts)].sum())

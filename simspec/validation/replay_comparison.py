"""One replay of synthetic sequences against the exact distribution of its rounds."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.policy.policy import Policy
from simspec.replay import metrics
from simspec.replay import replay as simulate
from simspec.trace.rounds import Rounds
from simspec.trace.trace import Trace
from simspec.validation import settings
from simspec.validation.checks import (
    Array,
    CheckPlan,
    PlannedCheck,
    RoundDistribution,
    broken_rounds,
    moments,
)


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

    def __init__(  # noqa: PLR0913
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

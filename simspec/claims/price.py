"""Price: measured costs, or the papers' ratio with flat or measured verification."""

from dataclasses import dataclass, replace

import numpy as np

from simspec.cost.model import CostModel
from simspec.tree.policy import MAX_SUBMITTED


@dataclass(frozen=True)
class Price:
    """How seconds are counted.

    | field | meaning |
    | --- | --- |
    | name | label in tables |
    | ratio | c, a draft step over a plain step of the target; None: all costs as measured |
    | flat | a verification pass costs a plain step, whatever it verifies |
    """

    name: str
    ratio: float | None = None
    flat: bool = False

    def of(self, cost: CostModel) -> CostModel:
        """The costs at this price, for up to 32 submitted tokens.

        At a ratio overhead, catch-up and features are free, as in the papers' formulas. A further
        row of a drafter's pass is free where verification is flat, else c times the mean price of
        a further row of the target's. Costs of one draft length are continued by `extend`.
        """
        if cost.K == 1:
            cost = cost.extend(2)
        cost = cost.widen(MAX_SUBMITTED)
        if self.ratio is None:
            return cost
        plain = cost.baseline
        row = max(float(cost.verify[-1] - cost.verify[0]) / cost.nodes, 0.0)
        priced = replace(
            cost,
            draft=self.ratio * plain * np.arange(cost.K + 1),
            verify=np.full(cost.nodes + 1, plain) if self.flat else cost.verify,
            catch_up=np.zeros(1),
            overhead=0.0,
            feature=0.0,
            predictor=None,
            node=0.0 if self.flat else self.ratio * row,
            kv_verify=0.0 if self.flat else cost.kv_verify,
            kv_draft=0.0,
            step=0.0 if self.flat else cost.step,
            precision=None,
            name=self.name,
        )
        return priced.derived(self.of, cost)


MEASURED = Price("measured")
RATIOS = (0.05, 0.10, 0.15)
PRICES = (
    MEASURED,
    *(Price(f"c={c:.2f} flat", c, True) for c in RATIOS),
    *(Price(f"c={c:.2f} rows", c, False) for c in RATIOS),
)
"""Measured; each c with verification at the price of a plain step; each c with measured rows."""

"""Effect of a claim on a recording at a price, its interval, and tests of the claim."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from simspec.numerics.stats import MIN_PROMPTS, Estimate, estimate, jackknife

Array = NDArray[np.float64]
Bounds = tuple[float, float]

POSITIVE: Bounds = (0.0, math.inf)
LEVEL = 0.95


@dataclass(frozen=True)
class EffectSource:
    """The recording or card in which an effect was seen.

    | field | meaning |
    | --- | --- |
    | name | the recording or the card; several are joined by ' / ' |
    | device | of the recording |
    | excluded | why it is shown, but no part of the verdict; '': it counts |
    """

    name: str
    device: str = ""
    excluded: str = ""

    @property
    def counted(self) -> bool:
        """Whether the effect is part of the verdict."""
        return not self.excluded


@dataclass(frozen=True)
class Effect:
    """One effect; a claim about it says that it lies within `bounds`.

    | field | meaning |
    | --- | --- |
    | part | what the effect is |
    | source, price | where, and at which price; price '': none enters |
    | interval | Estimate over prompts at 95%, of this effect alone |
    | error | standard error by jackknife over prompts |
    | bounds | (low, high) that the claim states |
    | figures | further figures, {name: value} |
    """

    part: str
    source: EffectSource
    price: str
    interval: Estimate
    error: float
    bounds: Bounds = POSITIVE
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def inside(self) -> float:
        """p-value of 'the effect is not within the bounds', the larger of both sides."""
        low, high = self.bounds
        value = self.interval.value
        return max(self._upper_tail(value - low), self._upper_tail(high - value))

    @property
    def outside(self) -> float:
        """p-value of 'the effect is within the bounds': twice the smaller of two finite sides."""
        low, high = self.bounds
        value = self.interval.value
        sides = math.isfinite(low) + math.isfinite(high)
        return min(1.0, sides * min(self._upper_tail(low - value), self._upper_tail(value - high)))

    def _upper_tail(self, distance: float) -> float:
        """P(T >= distance / error), Student's T of prompts - 1 degrees of freedom."""
        if self.error == 0:
            return 0.0 if distance > 0 else 1.0
        return float(stdtr(self.interval.prompts - 1, -distance / self.error))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; an infinite bound is None."""
        return {
            "part": self.part,
            "recording": self.source.name,
            "device": self.source.device,
            "counted": self.source.counted,
            "excluded": self.source.excluded,
            "price": self.price,
            "prompts": self.interval.prompts,
            "effect": self.interval,
            "error": self.error,
            "bounds": [x if math.isfinite(x) else None for x in self.bounds],
            "p_inside": self.inside,
            "p_outside": self.outside,
            "figures": self.figures,
        }


def observe(
    part: str,
    source: EffectSource,
    price: str,
    columns: Array,
    statistic: Callable[[Array], Any],
    bounds: Bounds = POSITIVE,
    figures: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Effect:
    """The Effect of a figure that is a function of sums over prompts; columns float64[P, C].

    The interval is that of `simspec.numerics.stats.bootstrap`; value -+ t error where some resample
    has no figure. ValueError for fewer than 8 prompts.
    """
    if len(columns) < MIN_PROMPTS:
        raise ValueError(
            f"{source.name}: {len(columns)} prompts, expected at least {MIN_PROMPTS}: take more"
        )
    value, error = jackknife(columns, statistic)
    interval = estimate(columns, statistic, level=LEVEL, resamples=2000, seed=seed)
    if math.isnan(interval.low):  # some resample has no figure
        interval = student_interval(value, error, len(columns))
    return Effect(part, source, price, interval, error, bounds, figures or {})


def student_interval(value: float, error: float, prompts: int) -> Estimate:
    """value -+ t error, Student's t of prompts - 1 degrees of freedom."""
    half = float(stdtrit(prompts - 1, (1 + LEVEL) / 2)) * error
    return Estimate(value, value - half, value + half, LEVEL, prompts)


def excess(totals: Array) -> Array:
    """a / b - 1 of totals [..., 2]: how much slower a is than b, in shares of b."""
    quotient: Array = totals[..., 0] / totals[..., 1]
    return quotient - 1

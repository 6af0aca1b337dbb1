"""Intervals as plain data and as text."""

import math
from collections.abc import Iterable
from typing import Any

from simspec.cost.model import CostModel
from simspec.numerics.stats import Interval


def number_or_none(value: float) -> float | None:
    """The value for JSON, which has no NaN."""
    return None if math.isnan(value) else value


def interval_data(interval: Interval) -> dict[str, float | None]:
    """{value, low, high} for JSON, NaN as None."""
    return {key: number_or_none(getattr(interval, key)) for key in ("value", "low", "high")}


def interval_columns(name: str, interval: Interval) -> dict[str, float]:
    """{name, name_low, name_high} for a data frame."""
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def interval_text(interval: Interval, form: str = ".2f", limits: bool = True) -> str:
    """'value [low, high]'; the value alone without limits, '-' for NaN."""
    if math.isnan(interval.value):
        return "-"
    text = f"{interval.value:{form}}"
    if limits and not math.isnan(interval.low):
        text += f" [{interval.low:{form}}, {interval.high:{form}}]"
    return text


def covers(costs: Iterable[Any]) -> list[str]:
    """What intervals of modelled speedups cover at these costs, ratios or CostModels, for JSON.

    Prices are covered where all costs hold replicates.
    """
    held = [isinstance(cost, CostModel) and bool(cost.replicates) for cost in costs]
    return ["prompts", "prices"] if held and all(held) else ["prompts"]


def covers_text(costs: Iterable[Any], level: float = 0.95) -> str:
    """The same as a sentence below a table."""
    costs = list(costs)
    if "prices" in covers(costs):
        return f"{level:.0%} intervals over prompts and prices."
    some = any(isinstance(cost, CostModel) and cost.replicates for cost in costs)
    which = "some of these costs" if some else "these costs"
    return f"{level:.0%} intervals over prompts; {which} hold no replicates."

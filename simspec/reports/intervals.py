"""Intervals as plain data and as text."""

import math

from simspec.stats import Interval


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

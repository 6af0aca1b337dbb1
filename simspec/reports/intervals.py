"""Intervals as text and JSON, and seconds of policies by prompt, which they are taken over."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.numerics.stats import Interval
from simspec.replay.replay import run_seconds
from simspec.replay.sweep import check_sweep, plan_jobs
from simspec.trace.trace import Trace


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


Seconds = dict[str, NDArray[np.float64]]


def prompt_seconds(
    trace: Trace, policies: Sequence[Any], cost: CostModel, replicates: int, seed: int
) -> tuple[Seconds, NDArray[np.int64]]:
    """({policy name: modelled seconds float64[S], averaged over replicates}, tokens int64[S])."""
    seconds, tokens = replicated_seconds(trace, policies, cost, replicates, seed)
    return {name: spent[:, 0] for name, spent in seconds.items()}, tokens


def replicated_seconds(
    trace: Trace,
    policies: Sequence[Any],
    cost: CostModel,
    replicates: int,
    seed: int,
    jobs: int = 1,
) -> tuple[Seconds, NDArray[np.int64]]:
    """As `prompt_seconds`, float64[S, 1 + R] each: at the costs, then at their R replicates.

    No policy is replayed at a replicate: each plans with the costs as measured, and its rounds are
    priced again. jobs: threads, on which results do not depend.
    """
    check_sweep("prompt", replicates, jobs)
    todo = plan_jobs({"": trace}, policies, {"": cost}, replicates, seed)
    seconds: Seconds = {}
    for job, spent in zip(todo, run_seconds(todo, jobs)):
        for _ in range(1 if job.random else replicates):
            total = seconds.get(job.policy.name, 0.0)
            seconds[job.policy.name] = total + spent / replicates
    return seconds, np.diff(trace.offset)

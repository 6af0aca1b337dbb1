"""Evaluation of policies on a recording: modelled seconds of every prompt, and speedups of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.gate import Claim, check_claims, no_interval
from simspec.cost.model import CostModel
from simspec.numerics.stats import Estimate, estimate, quotient, stacked
from simspec.numerics.stats import difference as difference_of_quotients
from simspec.replay.sweep import (
    ROUNDS,
    check_sweep,
    cost_model,
    plan_jobs,
    priced_seconds,
    prompt_figures,
)  # fmt: skip
from simspec.trace.recordings import check_priced
from simspec.trace.trace import Trace, load_trace

DRAWS = 16
"""Replays of a recording of the rejection rule that its times are means of."""

Array = NDArray[np.float64]
Seconds = dict[str, Array]
Sequences = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Policies on the prompts of one recording.

    Estimates resample prompts and, where there are any, replicates of the costs; options are those
    of `stats.bootstrap`. They have no limits where there is no interval, see `stats.estimate`.
    """

    seconds: Seconds  # {policy: float64[P, 1 + R]}: at the costs, then at their R replicates
    tokens: NDArray[np.int64]  # int64[P]: output tokens
    plain: Array  # float64[P]: seconds of plain decoding
    rounds: dict[str, float]  # {policy: float}: target passes, mean of the draws
    # text: why these costs give no intervals, see `gate.no_interval`; "": they do
    unsettled: str = ""

    @property
    def times(self) -> Seconds:
        """{policy: float64[P]}: seconds at the costs as measured."""
        return {policy: spent[:, 0] for policy, spent in self.seconds.items()}

    def total(self, policy: str) -> float:
        """Seconds of all prompts at the costs as measured."""
        return float(self.seconds[policy][:, 0].sum())

    def fastest(self, policies: Iterable[str]) -> str:
        """The policy of the least total, the first of equals."""
        return min(policies, key=self.total)

    def speedup(self, policy: str, **options: Any) -> Estimate:
        """Seconds of plain decoding over those of the policy."""
        options["limits"] = not self.unsettled
        return estimate(stacked(self.plain, self.seconds[policy]), quotient, **options)

    def gain(self, policy: str, over: str, **options: Any) -> Estimate:
        """Speedup of the policy less that of another, paired by prompt."""
        columns = stacked(self.plain, self.seconds[policy], self.plain, self.seconds[over])
        options["limits"] = not self.unsettled
        return estimate(columns, difference_of_quotients, **options)

    def claim(self, policy: str) -> Claim:
        """The policy's speedup as the gate sees it; the interval where it decides."""
        with np.errstate(divide="ignore"):
            speedup = float(self.plain.sum() / np.float64(self.total(policy)))
        claim = Claim(policy, speedup, float(self.tokens.sum() / self.rounds[policy]))
        return claim if claim.possible else replace(claim, low=self.speedup(policy).low)


def evaluate(
    trace: Trace, policies: Sequence[Any], cost: CostModel, replicates: int = 4, seed: int = 0
) -> Evaluation:
    """The evaluation of policies, as `sweep` takes them, averaged over `replicates` draws.

    No policy is replayed at a replicate of the costs: each plans with the costs as measured, and
    its rounds are priced again. ValueError for what cannot run, PriceError for a speedup that no
    round can reach.
    """
    check_sweep("prompt", replicates)
    seconds: Seconds = {}
    rounds: dict[str, float] = {}
    for job in plan_jobs({"": trace}, policies, {"": cost}, replicates, seed):
        figures = prompt_figures(trace, job.policy, cost, job.seed)
        spent, count = priced_seconds(figures), figures[:, ROUNDS].sum()
        name, draws = job.policy.name, replicates if job.random else 1
        for _ in range(1 if job.random else replicates):
            seconds[name] = seconds.get(name, 0.0) + spent / replicates
        rounds[name] = rounds.get(name, 0.0) + count / draws
    tokens = np.diff(trace.offset)
    found = Evaluation(seconds, tokens, tokens * cost.baseline, rounds, no_interval(cost))
    check_claims(map(found.claim, seconds), cost, f"costs {cost.name!r}")
    return found


def check_rows(
    rows: Iterable[Mapping[str, Any]], traces: Mapping[str, Trace], costs: Mapping[str, Any]
) -> None:
    """PriceError for rows of `sweep` whose policy's speedup no round can reach, see `evaluate`."""
    doubted = {
        (row["trace"], row["policy"])
        for row in rows
        if "speedup" in row
        and not Claim(row["policy"], row["speedup"], row["committed_per_round"]).possible
    }
    for name, policy in sorted(doubted):
        evaluate(traces[name], [policy], cost_model(costs[name], traces[name]), 1)


def priced_recordings(
    traces: Mapping[str, Trace | Path | str], costs: Any
) -> Iterator[tuple[str, Trace, CostModel]]:
    """(name, trace, its costs) of {name: Trace or path}; files are loaded one by one.

    costs: a CostModel, a ratio or {name: either}; a ratio prices any draft and tree. ValueError
    for a recording without costs.
    """
    check_priced({name: costs[name] if isinstance(costs, Mapping) else costs for name in traces})
    for name, source in traces.items():
        trace = source if isinstance(source, Trace) else load_trace(source)
        cost = costs[name] if isinstance(costs, Mapping) else costs
        yield name, trace, cost_model(cost, trace)


def halves(trace: Trace) -> list[tuple[Sequences, Sequences]]:
    """[(sequences to choose on, sequences to count)]: every second prompt, both ways.

    A single prompt is used for both.
    """
    every = np.arange(trace.sequences)
    if trace.sequences == 1:
        return [(every, every)]
    return [(every[::2], every[1::2]), (every[1::2], every[::2])]


def covers(costs: Iterable[Any]) -> list[str]:
    """Sources of error that estimates at these costs, ratios or CostModels, cover, for JSON.

    Prices are covered where all costs hold replicates; nothing is, where some give no intervals.
    """
    costs = list(costs)
    if any(map(unsettled, costs)):
        return []
    held = [isinstance(cost, CostModel) and bool(cost.replicates) for cost in costs]
    return ["prompts", "prices"] if held and all(held) else ["prompts"]


def covers_text(costs: Iterable[Any], level: float = 0.95) -> str:
    """The same as a sentence below a table."""
    costs = list(costs)
    if without := list(dict.fromkeys(filter(None, map(unsettled, costs)))):
        return f"Nothing is settled, and no interval is shown, {without[0]}."
    if "prices" in covers(costs):
        return f"{level:.0%} intervals over prompts and prices."
    some = any(isinstance(cost, CostModel) and cost.replicates for cost in costs)
    which = "some of these costs" if some else "these costs"
    return f"{level:.0%} intervals over prompts; {which} hold no replicates."


def unsettled(cost: Any) -> str:
    """`no_interval` of a cost with its name; "" of a ratio."""
    reason = no_interval(cost) if isinstance(cost, CostModel) else ""
    return f"at costs {cost.name!r}: {reason}: measure them again, idle" if reason else ""

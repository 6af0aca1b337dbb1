"""The share of the gap between the best fixed K and the oracle that a policy gains."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec import policies as policy_names
from simspec.cost.model import CostModel
from simspec.numerics.stats import MIN_PROMPTS, bootstrap, stacked
from simspec.output.terminal import markdown_table
from simspec.policies.fixed import fixed
from simspec.policies.oracle import oracle
from simspec.policy.policy import Policy
from simspec.replay.replay import prepare
from simspec.reports.intervals import replicated_seconds
from simspec.reports.reachable import reachable
from simspec.trace.acceptance import drawn_trace
from simspec.trace.trace import Trace, load_trace
from simspec.tree.tree import MAX_NODES

# A policy that reads a feature which a recording lacks is left out there: a dash in the table.
DEFAULT_POLICIES = (
    "beta_ts", "beta_ts:censored", "cali_ts", "model_only", "sampling_only", "cost_ts",
    "cost_ts:depth", "confidence:0.3", "confidence:0.5", "confidence:0.7", "entropy", "product",
    "adaedl", "draft_verify", "hf_heuristic",
)  # fmt: skip

Array = NDArray[np.float64]


def score(
    traces: Mapping[str, Trace | Path | str],
    policies: Sequence[Any] | None = None,
    costs: Any = 0.1,
    replicates: int = 4,
    seed: int = 0,
    resamples: int = 4000,
) -> list[dict[str, Any]]:
    """One dict per recording: {recording, cost, prompts, tokens, best_fixed, ..., policies: [...]}.

    speedup_signals {hindsight, crossed} is what rules on the recorded signals reach, see
    `simspec.reports.reachable`; hindsight is never below one of the policies.

    | key of a policy | meaning; T: modelled seconds summed over prompts, mean of replicates |
    | --- | --- |
    | speedup | tokens x plain step / T |
    | regret_fixed | T / T_fixed - 1; T_fixed: the best of fixed:0 .. fixed:K in hindsight |
    | regret_oracle | T / T_oracle - 1 |
    | share | (T_fixed - T) / (T_fixed - T_oracle); None where the oracle gains nothing |
    | low, high | 95% BCa bootstrap interval of the share over prompts and replicates of the \
costs, best fixed K held |

    low and high are None where some resample may hold no prompt on which the oracle gains. traces
    {name: Trace or path}; costs a CostModel, a ratio or {name: either}; policies as `sweep` takes
    them, default those of DEFAULT_POLICIES whose features the recording has. Under the rejection
    rule each replicate draws what is accepted, and its oracle knows that draw. ValueError for what
    cannot run, and for fewer than 8 prompts.
    """
    scores = []
    for name, source in traces.items():
        trace = source if isinstance(source, Trace) else load_trace(source)
        cost = costs[name] if isinstance(costs, Mapping) else costs
        cost = (
            cost if isinstance(cost, CostModel) else CostModel.from_ratio(cost, trace.K, MAX_NODES)
        )
        resolved = [policy_names.make(p, trace, cost) for p in policies or DEFAULT_POLICIES]
        if not policies:
            features = {feature for feature, _ in trace.meta.features}
            resolved = [policy for policy in resolved if features.issuperset(policy.reads)]
        lengths = [fixed(k) for k in range(trace.K + 1)]
        spent, tokens = _seconds(trace, [*lengths, *resolved], cost, replicates, seed)
        seconds = {policy: of_policy[:, 0] for policy, of_policy in spent.items()}
        best = min((policy.name for policy in lengths), key=lambda name: seconds[name].sum())
        plain = float(tokens.sum() * cost.baseline)
        rows = []
        for policy in resolved:
            columns = stacked(spent[best], spent[policy.name], spent["oracle"])
            speedup = {"policy": policy.name, "speedup": plain / float(columns.sum(axis=0)[1, 0])}
            rows.append(speedup | _gap(columns, resamples, seed))
        fitted = reachable(trace, cost, seed)
        times = [float(seconds[policy.name].sum()) for policy in resolved]
        reached = max([fitted.hindsight, *(plain / time for time in times)])
        scores.append(
            {
                "recording": name,
                "cost": cost.name,
                "prompts": len(tokens),
                "tokens": int(tokens.sum()),
                "best_fixed": best,
                "speedup_fixed": plain / float(seconds[best].sum()),
                "speedup_oracle": plain / float(seconds["oracle"].sum()),
                "speedup_signals": {"hindsight": reached, "crossed": fitted.crossed},
                "policies": rows,
            }
        )
    return scores


def _seconds(
    trace: Trace, policies: Sequence[Any], cost: CostModel, replicates: int, seed: int
) -> tuple[dict[str, Array], NDArray[np.int64]]:
    """As `replicated_seconds`, the oracle among the policies."""
    if replicates < 1:
        raise ValueError(f"replicates is {replicates}, expected at least 1")
    draws = [trace]
    if trace.ratio is not None:  # a draw is an ordinary recording, and has an oracle
        for policy in policies:
            if isinstance(policy, Policy):
                prepare(trace, policy, cost)
        draws, replicates = [drawn_trace(trace, seed + i) for i in range(replicates)], 1
    times = []
    for i, draw in enumerate(draws):
        named = {policy.name: policy for policy in (*policies, oracle.resolve(draw, cost))}
        times.append(replicated_seconds(draw, list(named.values()), cost, replicates, seed + i))
    names, tokens = times[0]
    return {
        name: np.mean([seconds[name] for seconds, _ in times], axis=0) for name in names
    }, tokens


def _gap(columns: Array, resamples: int, seed: int) -> dict[str, float | None]:
    totals = columns.sum(axis=0)[:, 0]
    fixed_time, policy_time, oracle_time = totals
    limits: dict[str, float | None] = {"share": None, "low": None, "high": None}
    if fixed_time - oracle_time > 1e-12 * fixed_time:
        limits["share"] = float(share(totals))
        try:
            interval = bootstrap(columns, share, resamples=resamples, seed=seed)
            limits |= {"low": interval.low, "high": interval.high}
        except ValueError:
            if len(columns) < MIN_PROMPTS:
                raise
    return {
        "regret_fixed": float(policy_time / fixed_time - 1),
        "regret_oracle": float(policy_time / oracle_time - 1),
    } | limits


def share(seconds: Array) -> Array:
    """(T_fixed - T) / (T_fixed - T_oracle) of totals float64[..., 3]: fixed, policy, oracle."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return (seconds[..., 0] - seconds[..., 1]) / (seconds[..., 0] - seconds[..., 2])


def markdown(scores: Sequence[dict[str, Any]]) -> str:
    """Policies down, recordings across, each cell 'share [low, high]' of the gap to the oracle."""
    names = dict.fromkeys(row["policy"] for score in scores for row in score["policies"])
    by_name = [{row["policy"]: row for row in score["policies"]} for score in scores]
    fixed_cells = (f"{s['best_fixed']}, {s['speedup_fixed']:.2f}x" for s in scores)
    rows = [
        ["best fixed K", *fixed_cells],
        ["oracle", *(f"{score['speedup_oracle']:.2f}x" for score in scores)],
        *([name, *(share_cell(of.get(name)) for of in by_name)] for name in names),
    ]
    return markdown_table(["policy", *(score["recording"] for score in scores)], rows)


def share_cell(row: Mapping[str, Any] | None) -> str:
    """A policy's 'share [low, high]', '-' where there is none."""
    if row is None or row["share"] is None:
        return "-"
    limits = "no interval" if row["low"] is None else f"{row['low']:.2f}, {row['high']:.2f}"
    return f"{row['share']:.2f} [{limits}]"

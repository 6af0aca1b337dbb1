"""The share of the gap between the best fixed K and the oracle that a policy gains."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec import policies as policy_names
from simspec.cost.model import CostModel
from simspec.evaluate.evaluation import Evaluation, evaluate, priced_recordings
from simspec.numerics.stats import MIN_PROMPTS, bootstrap, stacked
from simspec.output.table import Table
from simspec.policies.fixed import fixed
from simspec.policies.oracles import oracle
from simspec.policy.policy import Policy
from simspec.replay.replay import prepare
from simspec.reports.reachable import reachable
from simspec.trace.acceptance import drawn_trace
from simspec.trace.trace import Trace

# A policy that reads a feature which a recording lacks is left out there: a dash in the table.
DEFAULT_POLICIES = (
    "beta_ts", "beta_ts:censored", "cali_ts", "cali_ts:side=model", "cali_ts:side=sampling",
    "cost_ts", "cost_ts:depth", "confidence:0.3", "confidence:0.5", "confidence:0.7", "entropy",
    "product", "adaedl", "hf_heuristic",
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
    for name, trace, cost in priced_recordings(traces, costs):
        resolved = [policy_names.make(p, trace, cost) for p in policies or DEFAULT_POLICIES]
        if not policies:
            features = {feature for feature, _ in trace.meta.features}
            resolved = [policy for policy in resolved if features.issuperset(policy.reads)]
        lengths = [fixed(k) for k in range(trace.K + 1)]
        found = _evaluated(trace, [*lengths, *resolved], cost, replicates, seed)
        plain, best = float(found.plain.sum()), found.fastest(policy.name for policy in lengths)
        rows: list[dict[str, Any]] = []
        for policy in resolved:
            columns = stacked(*(found.seconds[name] for name in (best, policy.name, "oracle")))
            speedup = {"policy": policy.name, "speedup": plain / float(columns.sum(axis=0)[1, 0])}
            rows.append(speedup | _gap(columns, resamples, seed))
        fitted = reachable(trace, cost, seed)
        reached = max([fitted.hindsight, *(row["speedup"] for row in rows)])
        scores.append(
            {
                "recording": name,
                "cost": cost.name,
                "prompts": len(found.tokens),
                "tokens": int(found.tokens.sum()),
                "best_fixed": best,
                "speedup_fixed": plain / found.total(best),
                "speedup_oracle": plain / found.total("oracle"),
                "speedup_signals": {"hindsight": reached, "crossed": fitted.crossed},
                "policies": rows,
            }
        )
    return scores


def _evaluated(
    trace: Trace, policies: Sequence[Any], cost: CostModel, replicates: int, seed: int
) -> Evaluation:
    """The result of `evaluate`, with the oracle among the policies."""
    if replicates < 1:
        raise ValueError(f"replicates is {replicates}, expected at least 1")
    draws = [trace]
    if trace.ratio is not None:  # a draw is an ordinary recording, and has an oracle
        for policy in policies:
            if isinstance(policy, Policy):
                prepare(trace, policy, cost)
        draws, replicates = [drawn_trace(trace, seed + i) for i in range(replicates)], 1
    found = []
    for i, draw in enumerate(draws):
        named = {policy.name: policy for policy in (*policies, oracle.resolve(draw, cost))}
        found.append(evaluate(draw, list(named.values()), cost, replicates, seed + i))
    names = found[0].seconds
    seconds = {name: np.mean([of.seconds[name] for of in found], axis=0) for name in names}
    return replace(found[0], seconds=seconds)


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


def share_table(scores: Sequence[dict[str, Any]]) -> Table:
    """Policies down, recordings across, each cell 'share [low, high]' of the gap to the oracle."""
    names = dict.fromkeys(row["policy"] for score in scores for row in score["policies"])
    by_name = [{row["policy"]: row for row in score["policies"]} for score in scores]
    fixed_cells = (f"{s['best_fixed']}, {s['speedup_fixed']:.2f}x" for s in scores)
    rows = [
        ["best fixed K", *fixed_cells],
        ["oracle", *(f"{score['speedup_oracle']:.2f}x" for score in scores)],
        *([name, *(share_cell(of.get(name)) for of in by_name)] for name in names),
    ]
    return Table(["policy", *(score["recording"] for score in scores)], rows)


def score_tables(scores: Sequence[dict[str, Any]], covered: str) -> list[Table]:
    """A table for each recording, the last with what its intervals cover."""
    headings = ("policy", "speedup", "time over best fixed", "time over oracle")
    note = (
        f"{covered} The best fixed K is held at its choice on all prompts. Signals in hindsight: "
        "stopping rules on the recorded signals, fitted to the recording."
    )
    return [
        Table(
            (*headings, "share of the gap [95%]"),
            [
                (
                    row["policy"],
                    f"{row['speedup']:.3f}",
                    *(f"{row[name]:+.1%}" for name in ("regret_fixed", "regret_oracle")),
                    share_cell(row),
                )
                for row in of["policies"]
            ],
            title=f"{of['recording']}: best fixed K {of['best_fixed']} {of['speedup_fixed']:.3f}, "
            f"signals in hindsight {of['speedup_signals']['hindsight']:.3f}, "
            f"oracle {of['speedup_oracle']:.3f} ({of['prompts']} prompts, cost {of['cost']})",
            optional=headings[3:],
            notes=(note,) if of is scores[-1] else (),
        )
        for of in scores
    ]


def share_cell(row: Mapping[str, Any] | None) -> str:
    """A policy's 'share [low, high]', '-' where there is none."""
    if row is None or row["share"] is None:
        return "-"
    limits = "no interval" if row["low"] is None else f"{row['low']:.2f}, {row['high']:.2f}"
    return f"{row['share']:.2f} [{limits}]"

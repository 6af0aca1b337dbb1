"""The share of the gap between the best fixed K and the oracle that a policy gains."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec import policies as policy_names
from simspec.cost.model import CostModel
from simspec.numerics.stats import MIN_PROMPTS, Estimate, bootstrap, stacked
from simspec.output.frames import frame
from simspec.policies.fixed import fixed
from simspec.policies.oracles import oracle
from simspec.policy.policy import Policy
from simspec.replay.evaluation import Evaluation, evaluate, priced_recordings
from simspec.replay.replay import prepare
from simspec.trace.acceptance import drawn_trace
from simspec.trace.trace import Trace

# A policy that reads a feature which a recording lacks is left out there: a dash in the table.
DEFAULT_POLICIES = (
    "beta_ts", "beta_ts:censored", "cali_ts", "cali_ts:side=model", "cali_ts:side=sampling",
    "cost_ts", "cost_ts:depth", "confidence:0.3", "confidence:0.5", "confidence:0.7", "entropy",
    "product", "adaedl", "hf_heuristic",
)  # fmt: skip

Array = NDArray[np.float64]


def contestants(policies: Sequence[Any] | None, trace: Trace, cost: CostModel) -> list[Any]:
    """The policies for this trace and its costs; default those of DEFAULT_POLICIES whose features
    it has."""
    made = [policy_names.make(policy, trace, cost) for policy in policies or DEFAULT_POLICIES]
    features = {feature for feature, _ in trace.meta.features}
    return [policy for policy in made if policies or features.issuperset(policy.reads)]


def score(
    traces: Mapping[str, Trace | Path | str],
    costs: Any,
    policies: Sequence[Any] | None = None,
    replicates: int = 4,
    seed: int = 0,
    resamples: int = 4000,
    level: float = 0.95,
) -> list[dict[str, Any]]:
    """One dict per recording: {recording, cost, prompts, tokens, best_fixed, ..., policies: [...]}.

    speedup_fixed, _by_task, _by_prompt and _oracle bound what adapting can gain, in hindsight: by
    the best length of all prompts, of each task and of each prompt, and by the best of each round.

    | key of a policy | meaning; T: modelled seconds summed over prompts, mean of replicates |
    | --- | --- |
    | speedup | tokens x plain step / T |
    | regret_fixed | T / T_fixed - 1; T_fixed: the best of fixed:0 .. fixed:K in hindsight |
    | regret_oracle | T / T_oracle - 1 |
    | share | (T_fixed - T) / (T_fixed - T_oracle); None where the oracle gains nothing |
    | low, high | BCa bootstrap interval of the share over prompts and replicates of the \
costs, best fixed K held |

    low and high are None where some resample may hold no prompt on which the oracle gains, and at
    costs without intervals. traces
    {name: Trace or path}; costs a CostModel, a ratio or {name: either}; policies as `sweep` takes
    them, default those of DEFAULT_POLICIES whose features the recording has. Under the rejection
    rule each replicate draws what is accepted, and its oracle knows that draw. ValueError for what
    cannot run, and for fewer than 8 prompts.
    """
    scores = []
    for name, trace, cost in priced_recordings(traces, costs):
        resolved = contestants(policies, trace, cost)
        lengths = [fixed(k) for k in range(trace.K + 1)]
        found = _evaluated(trace, [*lengths, *resolved], cost, replicates, seed)
        plain, best = float(found.plain.sum()), found.fastest(policy.name for policy in lengths)
        of_length = np.array([found.seconds[policy.name][:, 0] for policy in lengths])  # [K + 1, S]
        tasks, task = np.unique(trace.task, return_inverse=True)
        by_task = [of_length[:, task == i].sum(1).min() for i in range(len(tasks))]
        rows: list[dict[str, Any]] = []
        for policy in resolved:
            columns = stacked(*(found.seconds[name] for name in (best, policy.name, "oracle")))
            speedup = {"policy": policy.name, "speedup": plain / float(columns.sum(axis=0)[1, 0])}
            limits = not found.unsettled
            rows.append(speedup | _gap(columns, limits, level, resamples, seed))
        scores.append(
            {
                "recording": name,
                "cost": cost.name,
                "prompts": len(found.tokens),
                "level": level,
                "tokens": int(found.tokens.sum()),
                "best_fixed": best,
                "speedup_fixed": plain / found.total(best),
                "speedup_by_task": plain / float(sum(by_task)),
                "speedup_by_prompt": plain / float(of_length.min(0).sum()),
                "speedup_oracle": plain / found.total("oracle"),
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


def _gap(
    columns: Array, known: bool, level: float, resamples: int, seed: int
) -> dict[str, float | None]:
    totals = columns.sum(axis=0)[:, 0]
    fixed_time, policy_time, oracle_time = totals
    limits: dict[str, float | None] = {"share": None, "low": None, "high": None}
    if fixed_time - oracle_time > 1e-12 * fixed_time:
        limits["share"] = float(share(totals))
    if known and limits["share"] is not None:
        try:
            interval = bootstrap(columns, share, level, resamples, seed)
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


def score_frame(scores: Sequence[dict[str, Any]]) -> Any:
    """A row a policy, after the best fixed length and the oracle."""
    nothing = {"regret_fixed": None, "regret_oracle": None, "share": None}
    rows = []
    for of in scores:
        bounds = {
            f"{of['best_fixed']}, the best fixed length": of["speedup_fixed"],
            "the best length of each task": of["speedup_by_task"],
            "the best length of each prompt": of["speedup_by_prompt"],
            "oracle": of["speedup_oracle"],
        }
        found = [{"policy": name, "speedup": value} | nothing for name, value in bounds.items()]
        for row in of["policies"]:
            low, high = (math.nan if row[end] is None else row[end] for end in ("low", "high"))
            share = row["share"]
            if share is not None:
                share = Estimate(share, low, high, of["level"], of["prompts"])
            kept = {name: row[name] for name in ("policy", "speedup", *nothing)}
            found.append(kept | {"share": share})
        rows += [{"recording": of["recording"], **row} for row in found]
    notes = [
        "share: of the gap from the best fixed length, held at its choice on all prompts, to the "
        "oracle. regret: extra time over either."
    ]
    return frame(
        rows, ("recording", "policy", "speedup", *nothing), names=2, notes=notes,
        formats={"regret_fixed": "+.1%", "regret_oracle": "+.1%", "share": ".2f"},
        optional=("regret_oracle", "regret_fixed"),
    )  # fmt: skip

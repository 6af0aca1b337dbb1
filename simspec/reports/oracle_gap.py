"""How much of what a perfect signal could add a policy gets: its share of the gap between the best fixed K and the oracle."""

from collections.abc import Mapping

import numpy as np

from simspec import policies as policy_texts
from simspec.cost import CostModel
from simspec.policies import fixed, oracle
from simspec.policy import Policy
from simspec.simulate import drawn, prepare
from simspec.stats import FEWEST, bootstrap
from simspec.sweep import rows
from simspec.trace import Trace, load_trace
from simspec.tree import MOST

# What needs a feature that a recording lacks is left out there, with a dash in the table.
DEFAULT_POLICIES = (
    "beta_ts", "beta_ts:censored", "cali_ts", "model_only", "sampling_only", "cost_ts", "cost_ts:depth",
    "confidence:0.3", "confidence:0.5", "confidence:0.7", "entropy", "product", "adaedl", "draft_verify", "hf_heuristic",
)  # fmt: skip


def score(
    traces: Mapping,
    policies=None,
    costs=0.1,
    replicates: int = 4,
    seed: int = 0,
    resamples: int = 4000,
) -> list[dict]:
    """One dict per recording: {recording, cost, prompts, tokens, best_fixed, speedup_fixed, speedup_oracle, policies: [...]}.

    Per policy: speedup = tokens x plain step / T; regret_fixed = T / T_fixed - 1; regret_oracle = T / T_oracle - 1; share =
    (T_fixed - T) / (T_fixed - T_oracle), modelled seconds T summed over prompts, replicates averaged. T_fixed is the best
    of fixed:0 .. fixed:K in hindsight, chosen once on all prompts; low and high are the share's 95% interval by BCa
    bootstrap over prompts with that choice held. Share, low, high are None where the oracle gains nothing, low and high also where it gains
    on so few prompts that a resample may hold none of them. traces {name: Trace or
    path}; costs a CostModel, a ratio or {name: either}; policies as `sweep` takes them, default those of DEFAULT_POLICIES
    whose features the recording has. On a recording of the rejection rule each replicate draws what is accepted, and its oracle knows that
    draw. ValueError, one line, for what cannot run and for fewer than 8 prompts.
    """
    found = []
    for name, given in traces.items():
        trace = given if isinstance(given, Trace) else load_trace(given)
        cost = costs[name] if isinstance(costs, Mapping) else costs
        cost = cost if isinstance(cost, CostModel) else CostModel.from_ratio(cost, trace.K, MOST)
        found.append(_one(name, trace, cost, policies, replicates, seed, resamples))
    return found


def _one(name, trace, cost, policies, replicates, seed, resamples):
    made = [policy_texts.make(policy, trace, cost) for policy in policies or DEFAULT_POLICIES]
    if not policies:
        known = {feature for feature, _ in trace.meta.features}
        made = [policy for policy in made if known.issuperset(policy.reads)]
    lengths = [fixed(k) for k in range(trace.K + 1)]
    seconds, tokens = _times(trace, [*lengths, *made], cost, replicates, seed)
    best = min((policy.name for policy in lengths), key=lambda each: seconds[each].sum())
    table = []
    for policy in made:
        columns = np.stack((seconds[best], seconds[policy.name], seconds["oracle"]), axis=-1)
        table.append(_row(policy.name, columns, tokens, cost, resamples, seed))
    fixed_time, oracle_time = seconds[best].sum(), seconds["oracle"].sum()
    return {
        "recording": name,
        "cost": cost.name,
        "prompts": len(tokens),
        "tokens": int(tokens.sum()),
        "best_fixed": best,
        "speedup_fixed": float(tokens.sum() * cost.baseline / fixed_time),
        "speedup_oracle": float(tokens.sum() * cost.baseline / oracle_time),
        "policies": table,
    }


def _times(trace, policies, cost, replicates, seed):
    """As `by_prompt`, the oracle among the policies."""
    if replicates < 1:
        raise ValueError(f"replicates is {replicates}, expected at least 1")
    draws, found = [trace], []
    if trace.ratio is not None:  # a draw is an ordinary recording, and there an oracle can be
        for policy in policies:
            if isinstance(policy, Policy):
                prepare(trace, policy, cost)
        draws, replicates = [drawn(trace, seed + i) for i in range(replicates)], 1
    for i, one in enumerate(draws):
        everyone = {policy.name: policy for policy in (*policies, oracle(one, cost))}
        found.append(by_prompt(one, list(everyone.values()), cost, replicates, seed + i))
    return {
        name: np.mean([seconds[name] for seconds, _ in found], axis=0) for name in found[0][0]
    }, found[0][1]


def _row(name, columns, tokens, cost, resamples, seed):
    best, own, least = columns.sum(axis=0)
    limits = {"share": None, "low": None, "high": None}
    if best - least > 1e-12 * best:
        limits["share"] = float(share(columns.sum(axis=0)))
        try:
            inside = bootstrap(columns, share, resamples=resamples, seed=seed)
            limits |= {"low": inside.low, "high": inside.high}
        except ValueError:
            if len(columns) < FEWEST:
                raise
    speedup = float(tokens.sum() * cost.baseline / own)
    return {
        "policy": name,
        "speedup": speedup,
        "regret_fixed": float(own / best - 1),
        "regret_oracle": float(own / least - 1),
    } | limits


def share(seconds):
    """(T_fixed - T) / (T_fixed - T_oracle) of totals [..., 3] in the order fixed, policy, oracle: 1 is the oracle, 0 the best fixed K."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return (seconds[..., 0] - seconds[..., 1]) / (seconds[..., 0] - seconds[..., 2])


def by_prompt(
    trace: Trace, policies, cost: CostModel, replicates: int, seed: int
) -> tuple[dict, np.ndarray]:
    """({policy name: modelled seconds float64 [S], averaged over replicates}, tokens [S]) of each prompt."""
    seconds, tokens = {}, {}
    for row in rows(
        {"": trace}, policies, {"": cost}, replicates=replicates, seed=seed, by="prompt"
    ):
        own = seconds.setdefault(row["policy"], {})
        own[row["group"]] = own.get(row["group"], 0.0) + row["seconds"] / replicates
        tokens[row["group"]] = row["tokens"]
    return {name: np.array(list(own.values())) for name, own in seconds.items()}, np.array(
        list(tokens.values())
    )


def markdown(scores: list[dict]) -> str:
    """The table of the README: policies down, recordings across, each cell 'share [low, high]' of the gap to the oracle."""
    names = list(dict.fromkeys(row["policy"] for each in scores for row in each["policies"]))
    shown = [{row["policy"]: row for row in each["policies"]} for each in scores]
    lines = [["policy", *(each["recording"] for each in scores)], ["---"] * (len(scores) + 1)]
    lines.append(
        [
            "best fixed K",
            *(f"{each['best_fixed']}, {each['speedup_fixed']:.2f}x" for each in scores),
        ]
    )
    lines.append(["oracle", *(f"{each['speedup_oracle']:.2f}x" for each in scores)])
    lines += [[name, *(_cell(each.get(name)) for each in shown)] for name in names]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(row):
    if row is None or row["share"] is None:
        return "-"
    limits = "no interval" if row["low"] is None else f"{row['low']:.2f}, {row['high']:.2f}"
    return f"{row['share']:.2f} [{limits}]"


def show(scores: list[dict], console) -> None:
    """Print what `score` gives to a rich Console, a table per recording."""
    from rich.table import Table

    for each in scores:
        title = f"{each['recording']}: best fixed K {each['best_fixed']} {each['speedup_fixed']:.3f}, oracle {each['speedup_oracle']:.3f}"
        console.print(f"{title} ({each['prompts']} prompts, cost {each['cost']})", highlight=False)
        table = Table(
            "policy",
            "speedup",
            "time over best fixed",
            "time over oracle",
            "share of the gap [95%]",
        )
        for row in each["policies"]:
            regrets = (f"{row[name]:+.1%}" for name in ("regret_fixed", "regret_oracle"))
            table.add_row(
                row["policy"], f"{row['speedup']:.3f}", *regrets, _cell(row).replace("[", "\\[")
            )
        console.print(table)
    console.print(
        "Intervals: bootstrap over prompts, the best fixed K held at its choice on all of them."
    )

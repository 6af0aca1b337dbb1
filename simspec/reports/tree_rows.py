"""Rows of trees and chains by prompt, and choices fitted to the other half of the prompts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.evaluate.evaluation import Sequences, halves
from simspec.numerics.stats import Estimate, difference, estimate, quotient, stacked
from simspec.policy.policy import Policy
from simspec.policy_kind import DeferredPolicy
from simspec.replay.metrics import replicate_seconds
from simspec.replay.replay import replay
from simspec.trace.trace import Trace
from simspec.tree.policy import MAX_SUBMITTED, TreePolicy
from simspec.tree.replay import prepare_tree, tree_rounds

Array = NDArray[np.float64]

TOKENS, ROUNDS, NODES, SECONDS, PASSES, DEPTHS = range(6)
"""Columns of `prompt_figures`; DEPTHS is the first of those by depth."""


@dataclass(frozen=True)
class TreeRow:
    """One policy on one recording; low and high are NaN where there is no interval.

    | field | meaning |
    | --- | --- |
    | recording, rule, policy | what was replayed, the policy without what was chosen for it |
    | chosen | what the other half of the prompts chose: k, or levels and nodes, one per half |
    | budget | node budget of a tree; 0: none is set |
    | clairvoyant | whether the policy knows the recorded tokens |
    | tau | Estimate: committed tokens per round, EAGLE's tau |
    | nodes | Estimate: submitted tokens per round |
    | passes | float: the drafter's passes per round |
    | depth_gain | Estimate: tau less that of the chain as deep as the tree; NaN: no one depth |
    | alpha | (float,) [K]: n-alpha of the replayed rounds; NaN: never so deep |
    | speedup | Estimate at the costs |
    | gain | Estimate: speedup less the best chain's, paired by prompt |
    """

    recording: str
    rule: str
    policy: str
    chosen: str
    budget: int
    clairvoyant: bool
    tau: Estimate
    nodes: Estimate
    passes: float
    depth_gain: Estimate
    alpha: tuple[float, ...]
    speedup: Estimate
    gain: Estimate


def prompt_figures(trace: Trace, policy: Policy | TreePolicy, cost: CostModel) -> Array:
    """float64[S, 5 + 2 K + R] per prompt: tokens, rounds, nodes, seconds, passes, right, tried, ...

    right[K] and tried[K] count the rounds whose draft was right at, and reached, each depth. The
    last R are seconds at the replicates of the costs.
    """
    cost = cost.reading(policy.reads)
    tree: tuple[Any, Any] | None = None
    if isinstance(policy, Policy):
        rounds = replay(trace, policy, cost=cost)
        seconds = cost.seconds(rounds)
    else:
        prepare_tree(trace, policy, cost)
        rounds, rows, backlog = tree_rounds(trace, policy)
        tree = rows, backlog
        seconds = cost.seconds_tree(rounds, *tree)
    slot = np.arange(trace.K)
    right = slot < rounds.accepted[:, None]
    reached = np.minimum(np.minimum(rounds.computed, rounds.drafted), rounds.accepted + 1)
    tried = slot < reached[:, None]
    of_round = np.column_stack(
        (np.ones(len(rounds)), rounds.drafted, seconds, rounds.computed, right, tried)
    )
    of_prompt = np.add.reduceat(of_round, rounds.offset[:-1], axis=0)
    priced = replicate_seconds(rounds, cost, tree)
    return np.column_stack((np.diff(trace.offset), of_prompt, priced))


def priced_seconds(figures: Array, cost: CostModel) -> Array:
    """float64[S, 1 + R] of `prompt_figures`: seconds at the costs, then at their replicates."""
    first = figures.shape[1] - len(cost.replicates)
    return figures[:, [SECONDS, *range(first, figures.shape[1])]]


def row_figures(
    figures: Array, best_chain: Array, equal: Array | None, cost: CostModel,
    options: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """tau, nodes, passes, depth_gain, alpha, speedup and gain of a TreeRow, from `prompt_figures`.

    best_chain, equal: the same of the best fixed length, and of the chain of each prompt's depth;
    options: level, resamples and seed of intervals.
    """
    tokens, rounds, nodes, _ = figures[:, :PASSES].T
    seconds, chain = (priced_seconds(of, cost) for of in (figures, best_chain))
    plain = tokens * cost.baseline
    by_depth = figures[:, DEPTHS : figures.shape[1] - len(cost.replicates)]
    right, tried = by_depth.sum(axis=0).reshape(2, -1)

    def of(*columns: Array) -> Estimate:
        statistic = quotient if len(columns) == 2 else difference
        return estimate(stacked(*columns), statistic, **options)

    no_depth = Estimate(np.nan, np.nan, np.nan, options["level"], len(tokens))
    return {
        "tau": of(tokens, rounds),
        "nodes": of(nodes, rounds),
        "passes": float(figures[:, PASSES].sum() / rounds.sum()),
        "depth_gain": no_depth
        if equal is None
        else of(tokens, rounds, equal[:, TOKENS], equal[:, ROUNDS]),
        "alpha": tuple(float(r / t) if t else float("nan") for r, t in zip(right, tried)),
        "speedup": of(plain, seconds),
        "gain": of(plain, seconds, plain, chain),
    }


Depths = NDArray[np.int64]
"""Longest path of a draft, by prompt; 0 where it is not fixed beforehand."""
Fitted = tuple[Array, str, Depths]
"""(`prompt_figures`, what was chosen, the depths)."""


def fit_length(
    trace: Trace, cost: CostModel, policy_of: Callable[[int], Policy | TreePolicy], k: int | None
) -> Fitted:
    """The lengths of policies with a chain of k tokens, k chosen if None."""
    depths = np.zeros(trace.sequences, np.int64)
    if k is not None:
        return prompt_figures(trace, policy_of(k), cost), f"k={k}", depths + k
    lengths = range(1, min(trace.K, MAX_SUBMITTED) + 1)
    by_length = np.stack([prompt_figures(trace, policy_of(j), cost) for j in lengths])
    figures, chosen = np.empty_like(by_length[0]), []
    for fit, rest in halves(trace):
        j = int(by_length[:, fit, SECONDS].sum(axis=1).argmin())
        figures[rest] = by_length[j, rest]
        depths[rest] = lengths[j]
        chosen.append(f"k={lengths[j]}")
    return figures, _distinct(chosen), depths


def fit_tree(
    trace: Trace, cost: CostModel, policy_of: Callable[[Sequences], DeferredPolicy]
) -> Fitted:
    """The shapes of trees that `policy_of` makes from some sequences."""
    figures: Array | None = None
    depths = np.zeros(trace.sequences, np.int64)
    chosen = []
    for fit, rest in halves(trace):
        policy = policy_of(fit).resolve(trace, cost)
        of_half = prompt_figures(trace, policy, cost)
        figures = of_half if figures is None else figures
        figures[rest] = of_half[rest]
        depths[rest] = depth_of(policy, trace)
        chosen.append(shape_of(policy))
    assert figures is not None
    return figures, _distinct(chosen), depths


def shape_of(policy: Policy | TreePolicy) -> str:
    """Nodes and depth of a static tree, '' for anything else."""
    if isinstance(policy, TreePolicy) and policy.kind == "static":
        return f"{len(policy.tree)} nodes, depth {policy.tree.levels}"
    return ""


def depth_of(policy: Policy | TreePolicy, trace: Trace) -> int:
    """Levels of a tree that its policy and the recording fix beforehand; 0 for anything else."""
    if not isinstance(policy, TreePolicy):
        return 0
    if policy.kind == "static":
        return policy.tree.levels
    if policy.kind in ("dynamic", "beam"):
        return trace.meta.tree[1] if trace.meta.tree else 0
    return policy.longest(trace.K)


def _distinct(chosen: list[str]) -> str:
    return " / ".join(dict.fromkeys(chosen))

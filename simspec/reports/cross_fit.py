"""Settings chosen on one half of the prompts and counted on the other, both ways."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.policy.policy import Policy
from simspec.policy_kind import DeferredPolicy
from simspec.reports.tree_rows import SECONDS, Array, prompt_figures
from simspec.trace.trace import Trace
from simspec.tree.policy import MAX_SUBMITTED, TreePolicy

Sequences = NDArray[np.intp]
Depths = NDArray[np.int64]
"""Longest path of a draft, by prompt; 0 where it is not fixed beforehand."""
Fitted = tuple[Array, str, Depths]
"""(`prompt_figures`, what was chosen, the depths)."""


def halves(trace: Trace) -> list[tuple[Sequences, Sequences]]:
    """[(sequences to choose on, sequences to count)]: every second prompt, both ways.

    A single prompt is used for both.
    """
    every = np.arange(trace.sequences)
    if trace.sequences == 1:
        return [(every, every)]
    return [(every[::2], every[1::2]), (every[1::2], every[::2])]


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

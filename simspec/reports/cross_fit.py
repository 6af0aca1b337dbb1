"""Settings chosen on one half of the prompts and counted on the other, both ways."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simspec.cost import CostModel
from simspec.deferred_policy import DeferredPolicy
from simspec.policy import Policy
from simspec.reports.tree_rows import SECONDS, Array, prompt_figures
from simspec.trace import Trace
from simspec.tree_policy import MAX_SUBMITTED, TreePolicy

Sequences = NDArray[np.intp]


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
) -> tuple[Array, str]:
    """(`prompt_figures`, the lengths) of policies with a chain of k tokens, k chosen if None."""
    if k is not None:
        return prompt_figures(trace, policy_of(k), cost), f"k={k}"
    lengths = range(1, min(trace.K, MAX_SUBMITTED) + 1)
    by_length = np.stack([prompt_figures(trace, policy_of(j), cost) for j in lengths])
    figures, chosen = np.empty_like(by_length[0]), []
    for fit, rest in halves(trace):
        j = int(by_length[:, fit, SECONDS].sum(axis=1).argmin())
        figures[rest] = by_length[j, rest]
        chosen.append(f"k={lengths[j]}")
    return figures, _distinct(chosen)


def fit_tree(
    trace: Trace, cost: CostModel, policy_of: Callable[[Sequences], DeferredPolicy]
) -> tuple[Array, str]:
    """(`prompt_figures`, the shapes chosen) of trees that `policy_of` makes from some sequences."""
    figures: Array | None = None
    chosen = []
    for fit, rest in halves(trace):
        policy = policy_of(fit).resolve(trace, cost)
        of_half = prompt_figures(trace, policy, cost)
        figures = of_half if figures is None else figures
        figures[rest] = of_half[rest]
        chosen.append(shape_of(policy))
    assert figures is not None
    return figures, _distinct(chosen)


def shape_of(policy: Policy | TreePolicy) -> str:
    """Nodes and depth of a static tree, '' for anything else."""
    if isinstance(policy, TreePolicy) and policy.kind == "static":
        return f"{len(policy.tree)} nodes, depth {policy.tree.levels}"
    return ""


def _distinct(chosen: list[str]) -> str:
    return " / ".join(dict.fromkeys(chosen))

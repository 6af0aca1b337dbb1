"""Claims about draft trees: EESD with tree attention, CAPE and beams, EAGLE's tree."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from simspec.claims.claim import Inputs
from simspec.claims.evidence import POSITIVE, Array, Evidence, difference, excess, observe
from simspec.claims.price import Price
from simspec.claims.recorded import Recorded
from simspec.policies.fitted_trees import optimal_tree
from simspec.policies.fixed import fixed
from simspec.policies.trees import beams, cape, sets
from simspec.reports.cross_fit import fit_tree
from simspec.reports.tree_rows import NODES as NODES_SUBMITTED
from simspec.reports.tree_rows import ROUNDS, SECONDS, TOKENS, prompt_figures
from simspec.tree_policy import TreePolicy
from simspec.tree_shapes import published_tree

GAMMA = 5
"""GLIDE's draft length (section 5)."""
BEAM = "beam4"
"""GLIDE's beam search in its figures (section 5.1): 4 wide, GAMMA deep."""
EAGLE_TREE = published_tree("eagle-25")
ADDED = (0.6, 0.8)
"""What EAGLE's section 5.3.1 says that trees add to tau."""


def tree_attention(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 10: how much slower the best chain is than Sequoia's tree of the best size."""
    found = []
    for recorded in inputs.recordings.of("early_exit"):
        # a tree of no nodes is plain decoding, so a chain of no tokens is in the choice as well
        chain, k = recorded.best_fixed(price, shortest=0)
        figures, *_ = fit_tree(recorded.trace, price.of(recorded.cost), partial(optimal_tree, None))
        part = "time of the best chain over that of the best tree, less 1"
        tau = float(figures[:, TOKENS].sum() / figures[:, ROUNDS].sum())
        shown = {"K of the chain": k, "nodes of the tree": _nodes(figures), "its tau": tau}
        seconds = chain, figures[:, SECONDS]
        found.append(_paired(part, recorded, inputs, price, seconds, shown))
    return found


def expansion_sets(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 13: CAPE against the chain, beams against it, and CAPE against sets of 4."""
    found = []
    for recorded in inputs.recordings.of("glide"):
        if recorded.trace.K < GAMMA:
            continue
        cost = price.of(recorded.cost)
        chain, by_confidence, alike = (
            prompt_figures(recorded.trace, policy, cost)
            for policy in (fixed(GAMMA), cape("section", GAMMA), sets(4, GAMMA))
        )
        for part, name, slower in (
            ("CAPE: time of the chain over CAPE's, less 1", "the chain", chain),
            ("sizes: time of sets of 4 over CAPE's, less 1", "sets of 4", alike),
        ):
            seconds = slower[:, SECONDS], by_confidence[:, SECONDS]
            nodes = {"nodes of CAPE": _nodes(by_confidence), f"of {name}": _nodes(slower)}
            found.append(_paired(part, recorded, inputs, price, seconds, nodes))
    searched = [r for r in inputs.recordings.of("glide", "eagle") if r.trace.beam is not None]
    for recorded in [*inputs.recordings.further("glide", BEAM), *searched]:
        levels = min(recorded.trace.meta.tree[1], recorded.trace.K)  # type: ignore[misc]
        seconds = _seconds(recorded, beams(), price), recorded.seconds(fixed(levels), price)
        part = "beams: time of beam search over that of a chain of its depth, less 1"
        found.append(_paired(part, recorded, inputs, price, seconds))
    return found


def added_length(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 16: tau of EAGLE's tree less that of the chain of its depth."""
    found = []
    for recorded in inputs.recordings.of("eagle"):
        if (levels := EAGLE_TREE.levels) > recorded.trace.K:
            continue
        cost = price.of(recorded.cost)
        tree = prompt_figures(
            recorded.trace, TreePolicy("eagle_tree", "static", tree=EAGLE_TREE), cost
        )
        chain = prompt_figures(recorded.trace, fixed(levels), cost)
        columns = np.concatenate([x[:, [TOKENS, ROUNDS]] for x in (tree, chain)], axis=1)
        tau = [float(x[:, TOKENS].sum() / x[:, ROUNDS].sum()) for x in (tree, chain)]
        found.append(
            observe(
                f"tau of EAGLE's tree less that of a chain of {levels}", recorded.source,
                price.name, columns, difference, ADDED,
                {"tau of the tree": tau[0], "of the chain": tau[1]}, inputs.seed,
            )
        )  # fmt: skip
    return found


def _seconds(recorded: Recorded, policy: TreePolicy, price: Price) -> Array:
    seconds: Array = prompt_figures(recorded.trace, policy, price.of(recorded.cost))[:, SECONDS]
    return seconds


def _nodes(figures: Array) -> float:
    return float(figures[:, NODES_SUBMITTED].sum() / figures[:, ROUNDS].sum())


def _paired(
    part: str, recorded: Recorded, inputs: Inputs, price: Price, seconds: tuple[Array, Array],
    figures: Mapping[str, float] | None = None,
) -> Evidence:  # fmt: skip
    columns = np.stack(seconds, -1)
    return observe(
        part, recorded.source, price.name, columns, excess, POSITIVE, figures, inputs.seed
    )

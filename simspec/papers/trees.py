"""Claims about draft trees: EESD with tree attention, CAPE and beams, EAGLE's tree."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from simspec.cost.model import CostModel
from simspec.evaluate.evaluation import Sequences, halves
from simspec.numerics.stats import difference
from simspec.papers.claim import EAGLE, EESD, GLIDE, Claim, Inputs
from simspec.papers.evidence import POSITIVE, Array, Effect, excess, observe
from simspec.papers.recorded import TRAINED, Price, Recorded
from simspec.policies.fixed import fixed
from simspec.policies.trees import cape, dynamic_tree, optimal_tree
from simspec.policy.policy import Policy
from simspec.policy_kind import DeferredPolicy
from simspec.reports.tree_rows import NODES as NODES_SUBMITTED
from simspec.reports.tree_rows import ROUNDS, SECONDS, TOKENS, fit_tree, prompt_figures
from simspec.trace.trace import Trace
from simspec.tree.policy import TreePolicy
from simspec.tree.tree import published_tree

GAMMA = 5
"""GLIDE's draft length (section 5)."""
SIZES = range(1, 8)
"""Whole sizes from CAPE's least to its largest (GLIDE section 4.2)."""
BEAM = "beam4"
"""GLIDE's beam search in its figures (section 5.1): 4 wide, GAMMA deep."""
BLIND = "the search ignores the shared noise"
"""Beams are kept by probability; the coupled rule accepts the token that the noise picks."""
EAGLE_TREE = published_tree("eagle-25")
ADDED = (0.6, 0.8)
"""Range that trees add to tau, as EAGLE's section 5.3.1 says."""


def tree_attention(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 10: how much slower the best chain is than Sequoia's tree of the best size."""
    found = []
    for recorded in inputs.recordings.of(*TRAINED):
        # a tree of no nodes is plain decoding, so a chain of no tokens is in the choice as well
        chain, k = recorded.best_fixed(price, shortest=0)
        figures, *_ = fit_tree(recorded.trace, price.of(recorded.cost), tree_or_chain)
        part = "time of the best chain over that of the best tree, less 1"
        tau = float(figures[:, TOKENS].sum() / figures[:, ROUNDS].sum())
        shown = {"K of the chain": k, "nodes of the tree": _nodes(figures), "its tau": tau}
        seconds = chain, figures[:, SECONDS]
        found.append(_paired(part, recorded, inputs, price, seconds, shown))
    return found


def tree_or_chain(fit: Sequences) -> DeferredPolicy:
    """Sequoia's tree of the best size, fitted to some sequences; a chain where it has no siblings.

    A tree drafts all of its levels even where the output ends before them. A chain stops there, so
    a tree of one branch would lose to itself.
    """
    fitted = optimal_tree(fit=fit)

    def make(trace: Trace, cost: CostModel) -> Policy | TreePolicy:
        policy = fitted.resolve(trace, cost)
        assert isinstance(policy, TreePolicy)
        return policy if any(policy.tree.rank) else fixed(len(policy.tree))

    return replace(fitted, make=make)


def cape_pays(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 13a: how much slower the chain is than CAPE."""
    part = "time of the chain over CAPE's, less 1"
    found = []
    for recorded, cost, ours in _capes(inputs, price):
        theirs = prompt_figures(recorded.trace, fixed(GAMMA), cost)
        nodes = {"nodes of CAPE": _nodes(ours), "of the chain": _nodes(theirs)}
        seconds = theirs[:, SECONDS], ours[:, SECONDS]
        found.append(_paired(part, recorded, inputs, price, seconds, nodes))
    return found


def sizes_by_confidence(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 13c: how much slower sets of one size are than CAPE, at equal numbers of nodes."""
    part = "time of sets of one size over CAPE's, less 1"
    found = []
    for recorded, cost, ours in _capes(inputs, price):
        theirs, size = one_size(recorded.trace, cost, ours)
        nodes = {"nodes of CAPE": _nodes(ours), "of one size": _nodes(theirs), "size": size}
        seconds = theirs[:, SECONDS], ours[:, SECONDS]
        found.append(_paired(part, recorded, inputs, price, seconds, nodes))
    return found


def _capes(inputs: Inputs, price: Price) -> list[tuple[Recorded, CostModel, Array]]:
    """(recording, its costs at this price, CAPE's `prompt_figures`) of GLIDE."""
    return [
        (recorded, cost, prompt_figures(recorded.trace, cape("section", GAMMA), cost))
        for recorded in inputs.recordings.of("glide")
        if recorded.trace.K >= GAMMA
        for cost in [price.of(recorded.cost)]
    ]


def one_size(trace: Trace, cost: CostModel, ours: Array) -> tuple[Array, float]:
    """(`prompt_figures` of sets of one size with as many nodes a round as `ours`, mean size).

    Each prompt draws one of two neighbouring whole sizes. On the other half of the prompts its
    expected nodes over its expected rounds are those of `ours`; the figures are expectations.
    """
    by_size = np.stack([prompt_figures(trace, cape(size, GAMMA), cost) for size in SIZES])
    figures, mean = np.empty_like(ours), 0.0
    for fit, rest in halves(trace):
        nodes, rounds = (by_size[:, fit, i].sum(axis=1) for i in (NODES_SUBMITTED, ROUNDS))
        aim = _nodes(ours[fit])
        # what a size submits beyond `aim` grows with the size, and mixes linearly
        size = float(np.interp(0.0, nodes - aim * rounds, SIZES))
        low = min(int(size), SIZES[-2])
        pair = by_size[[low - SIZES[0], low + 1 - SIZES[0]]][:, rest]
        figures[rest] = pair[0] + (size - low) * (pair[1] - pair[0])
        mean += size * len(rest) / trace.sequences
    return figures, mean


def beam_search(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 13b: how much slower beam search is than a chain of its depth."""
    found = []
    searched = [r for r in inputs.recordings.of("glide", "eagle") if r.trace.beam is not None]
    for recorded in [*inputs.recordings.further("glide", BEAM), *searched]:
        levels = min(recorded.trace.meta.tree[1], recorded.trace.K)  # type: ignore[misc]
        seconds = (
            _seconds(recorded, dynamic_tree("beams"), price),
            recorded.seconds(fixed(levels), price),
        )
        part = "time of beam search over that of a chain of its depth, less 1"
        if recorded.rule == "coupled":
            recorded = replace(recorded, excluded=recorded.excluded or BLIND)
        found.append(_paired(part, recorded, inputs, price, seconds))
    return found


def added_length(inputs: Inputs, price: Price) -> list[Effect]:
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
) -> Effect:  # fmt: skip
    columns = np.stack(seconds, -1)
    return observe(
        part, recorded.source, price.name, columns, excess, POSITIVE, figures, inputs.seed
    )


CLAIMS = (
    Claim(
        10, "Tree attention adds speedup to EESD.", EESD, "section 5.7, Table 7",
        tree_attention,
        detail="Sequoia's tree of the best size and the best chain, plain decoding among both; "
        "each is chosen on the other half. Every trained drafter. A raised recording has no "
        "siblings, so it cannot carry this claim.",
        regime="EESD's early exit with and without tree attention, where verification is nearly "
        "flat.",
    ),
    Claim(
        13, "CAPE pays.", GLIDE, "Figure 6", cape_pays, part="a",
        detail="Against a chain of the paper's draft length, 5.",
        regime="drafts of 5 on targets of 7B to 33B, where verification is nearly flat.",
    ),
    Claim(
        13, "Beam search does not pay.", GLIDE, "section 5.4, Table 3", beam_search,
        part="b",
        detail="Against a chain of its depth, where beams are recorded. Under the coupled rule "
        "beams are kept by probability while the shared noise picks the token, so these recordings "
        "do not count.",
        regime="greedy decoding, 4 beams; a step of the drafter takes twice as long.",
    ),
    Claim(
        13, "Sizes by confidence beat one size.", GLIDE, "section 5.4", sizes_by_confidence,
        part="c",
        detail="At the paper's draft length of 5; the one size, drawn for each prompt from two "
        "whole ones, submits as many nodes a round as CAPE does on the other half.",
        regime="4, the average size of CAPE's sets there: 70.6 against 68.4 tokens/s.",
    ),
    Claim(
        16, "Tree drafts add 0.6 to 0.8 to tau.", EAGLE, "section 5.3.1, Table 5",
        added_length, (),
        detail="EAGLE's tree of 25 nodes against a chain of its depth, 5.",
        regime="the same tree, on Vicuna and LLaMA2-Chat.",
    ),
)  # fmt: skip

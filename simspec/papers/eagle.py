"""Tables 1 and 5 and Figure 10 of EAGLE (arXiv 2401.15077)."""

from simspec.claims.claim import Inputs
from simspec.claims.evidence import Array, difference
from simspec.claims.recorded import MEASURED, Recorded
from simspec.claims.trees import EAGLE_TREE
from simspec.papers.table import (
    MISSING,
    Cell,
    Figure,
    PaperTable,
    card_of,
    figure,
    learned,
    plain,
    quotient,
)
from simspec.policies.fixed import fixed
from simspec.reports.drafters import by_depth
from simspec.reports.tree_rows import ROUNDS, TOKENS, prompt_figures
from simspec.tree.policy import TreePolicy

ALPHAS = range(5)
TREE = TreePolicy("eagle_tree", "static", tree=EAGLE_TREE)
INPUTS = ("eagle-shifted", "eagle-unshifted", "eagle-feature", "eagle-token")


def table_1(inputs: Inputs) -> PaperTable:
    """tau and n-alpha."""
    rows = []
    for recorded in inputs.recordings.of("eagle"):
        accepted, tried = by_depth(recorded.trace)
        alphas: list[Cell] = [
            figure((accepted[:, n], tried[:, n]), quotient, seed=inputs.seed)
            if n < recorded.trace.K
            else "-"
            for n in ALPHAS
        ]
        chain, tree = (_tau(x, inputs) for x in _tokens_and_rounds(recorded))
        rows.append((recorded.name, _temperature(recorded), tree, chain, *alphas))
    return PaperTable(
        "EAGLE Tables 1 to 3: average acceptance length and acceptance rates",
        ("recording", "T", "tau, tree", "tau, chain", *(f"{n}-alpha" for n in ALPHAS)),
        tuple(rows),
        (
            "tau: tokens committed a round, by EAGLE's tree of 25 nodes and by a chain as deep. "
            "n-alpha: along a chain, as in the paper. In coupled recordings both models share "
            "their noise.",
        ),
        names=2,
    )


def table_5(inputs: Inputs) -> PaperTable:
    """tau of a chain and of the published tree."""
    rows = []
    for recorded in inputs.recordings.of("eagle"):
        chain, tree = _tokens_and_rounds(recorded)
        gain = figure((*tree.T, *chain.T), difference, "+.2f", inputs.seed)
        rows.append(
            (recorded.name, _temperature(recorded), _tau(chain, inputs), _tau(tree, inputs), gain)
        )
    return PaperTable(
        "EAGLE Table 5: tau with and without tree attention",
        ("recording", "T", "chain", "tree", "added"),
        tuple(rows),
        (
            f"EAGLE's tree of 25 nodes against a chain as deep, {EAGLE_TREE.levels}; the paper's "
            "trees add 0.6 to 0.8.",
        ),
        names=2,
    )


def figure_10(inputs: Inputs) -> PaperTable:
    """The four inputs of the draft head, trained alike."""
    rows: list[tuple[Cell, ...]] = []
    for name in INPUTS:
        card = card_of(inputs, name)
        if card is None:
            rows.append((name.removeprefix("eagle-"), *[MISSING] * (2 + len(ALPHAS))))
            continue
        lengths: list[Cell] = [Figure(x.interval, ".3f") for x in card.lengths]
        lengths += ["-"] * (2 - len(lengths))
        shown = card.data["evaluation"].get("recorded", card.data["evaluation"]["trained"])
        shares = [*shown["by_depth"], *[None] * len(ALPHAS)][: len(ALPHAS)]
        alphas = ["-" if share is None else plain(float(share)) for share in shares]
        rows.append((str(card.setting("inputs")), *lengths, *alphas))
    return PaperTable(
        "EAGLE Figure 10: inputs of the draft head",
        ("inputs", "held-out text", "sampled outputs", *(f"{n}-alpha" for n in ALPHAS)),
        tuple(rows),
        (
            "Accepted length of drafts of 5 from every position; n-alpha on sampled outputs. All "
            "learned the same windows. The paper shows speedups.",
            *learned(inputs, *INPUTS),
        ),
    )


def _tokens_and_rounds(recorded: Recorded) -> tuple[Array, Array]:
    """float64[S, 2] of the chain as deep as EAGLE's tree, and of the tree."""
    policies = fixed(min(EAGLE_TREE.levels, recorded.trace.K)), TREE
    chain, tree = (
        prompt_figures(recorded.trace, policy, MEASURED.of(recorded.cost))[:, [TOKENS, ROUNDS]]
        for policy in policies
    )
    return chain, tree


def _tau(columns: Array, inputs: Inputs) -> Figure:
    return figure(tuple(columns.T), quotient, seed=inputs.seed)


def _temperature(recorded: Recorded) -> str:
    return f"{recorded.trace.meta.temperature:g}"

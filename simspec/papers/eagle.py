"""Tables 1 and 4 to 7 and Figure 10 of EAGLE (arXiv 2401.15077)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simspec.numerics.stats import difference, quotient
from simspec.output.files import read_json
from simspec.output.table import Table
from simspec.papers.card import shared_lengths
from simspec.papers.claim import Inputs
from simspec.papers.evidence import Array
from simspec.papers.glide import best_length
from simspec.papers.recorded import MEASURED, Recorded
from simspec.papers.table import MISSING, Cell, Figure, card_of, figure, learned, plain
from simspec.papers.trees import EAGLE_TREE
from simspec.policies.fixed import fixed
from simspec.replay.lock_step import plain_steps
from simspec.reports.tree_rows import ROUNDS, TOKENS, prompt_figures
from simspec.trace.acceptance import by_depth
from simspec.tree.policy import TreePolicy

ALPHAS = range(5)
SHOWN_BATCHES = (1, 2, 3, 4)
BATCHES = (*SHOWN_BATCHES, 8, 16, 32)
TREE = TreePolicy("eagle_tree", "static", tree=EAGLE_TREE)
TEXT_ALONE = "eagle-text"
RACE = "smollm2/measured/race_engines.json"
RACED = {
    "generate": ("transformers", "24.5"),
    "plain": ("simspec", "55.1"),
    "eagle=fixed:2": ("EAGLE in simspec", "100.2"),
}
"""Contestants of that race: what each is, and the paper's tokens a second (Table 4, FP16)."""
INPUTS = ("eagle-shifted", "eagle-unshifted", "eagle-feature", "eagle-token")


def table_1(inputs: Inputs) -> Table:
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
    return Table(
        title="EAGLE Tables 1 to 3: average acceptance length and acceptance rates",
        headings=("recording", "T", "tau, tree", "tau, chain", *(f"{n}-alpha" for n in ALPHAS)),
        rows=tuple(rows),
        notes=(
            "tau: tokens committed a round, by EAGLE's tree of 25 nodes and by a chain as deep. "
            "n-alpha: along a chain, as in the paper. In coupled recordings both models share "
            "their noise.",
        ),
        names=2,
    )


def table_4(inputs: Inputs) -> Table:
    """Tokens a second of transformers, of a faster engine, and of EAGLE in it."""
    folder = inputs.recordings.folder
    path = None if folder is None else folder / RACE
    dtype, raced = ("bfloat16", {}) if path is None or not path.is_file() else _raced(path)
    rows: list[tuple[Cell, ...]] = []
    for contestant, (name, printed) in RACED.items():
        cells: list[Cell] = [MISSING] * 2
        if contestant in raced:
            (tokens, seconds), (_, vanilla) = raced[contestant], raced["generate"]
            cells = [
                figure((tokens, seconds), quotient, ".1f", inputs.seed),
                figure((vanilla, seconds), quotient, seed=inputs.seed),
            ]
        rows.append((name, *cells, printed))
    return Table(
        title="EAGLE Table 4: with a faster engine, tokens a second",
        headings=("decoding", "tokens/s", "times transformers", "printed: tokens/s"),
        rows=tuple(rows),
        notes=(
            f"SmolLM2-135M, greedily, in {dtype} on a CPU, chains of 2: one race of all three. "
            "Printed: LLaMA2-Chat 13B in FP16 by transformers, gpt-fast and EAGLE with gpt-fast, "
            "on MT-bench; int4 gives 106.9 and 160.4.",
        ),
    )


def _raced(path: Path) -> tuple[str, dict[str, tuple[Array, Array]]]:
    """A race's dtype, and {contestant: (tokens, mean seconds of a repeat), float64[S] each}."""

    def read(data: Any) -> tuple[str, dict[str, tuple[Array, Array]]]:
        try:
            found = {
                name: tuple(
                    np.array(data["raw"][name][key], np.float64).mean(axis=0)
                    for key in ("tokens", "seconds")
                )
                for name in RACED
            }
            dtype = str(data["dtype"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"lacks {error}, expected runs of {', '.join(RACED)}") from None
        return dtype, {name: (tokens, seconds) for name, (tokens, seconds) in found.items()}

    return read_json(path, read, "race")


def table_5(inputs: Inputs) -> Table:
    """tau of a chain and of the published tree."""
    rows = []
    for recorded in inputs.recordings.of("eagle"):
        chain, tree = _tokens_and_rounds(recorded)
        gain = figure((*tree.T, *chain.T), difference, "+.2f", inputs.seed)
        rows.append(
            (recorded.name, _temperature(recorded), _tau(chain, inputs), _tau(tree, inputs), gain)
        )
    return Table(
        title="EAGLE Table 5: tau with and without tree attention",
        headings=("recording", "T", "chain", "tree", "added"),
        rows=tuple(rows),
        notes=(
            f"EAGLE's tree of 25 nodes against a chain as deep, {EAGLE_TREE.levels}; the paper's "
            "trees add 0.6 to 0.8.",
        ),
        names=2,
    )


def table_6(inputs: Inputs) -> Table:
    """Accepted length of one that learned text alone, and of one half of whose text the target
    wrote."""
    half, text = (card_of(inputs, name) for name in (INPUTS[0], TEXT_ALONE))
    rows: list[tuple[Cell, ...]] = []
    for with_it, without in [] if half is None or text is None else shared_lengths(half, text):
        if with_it.sums is not None and without.sums is not None:
            one, other = with_it.sums[:, :2], without.sums[:, :2]
            lengths = [figure(tuple(x.T), quotient, ".3f", inputs.seed) for x in (other, one)]
            gain = figure((*one.T, *other.T), difference, "+.3f", inputs.seed)
            rows.append((with_it.where, *lengths, gain))
    return Table(
        title="EAGLE Table 6: accepted length by what it learned from",
        headings=("sequences", "text alone", "half by the target", "gain"),
        rows=tuple(rows) or ((MISSING,) * 4,),
        notes=(
            "Drafts of 5 from every position. The paper, tokens a round by trees: 3.62 learned "
            "from a fixed data set and 3.75 from the target's answers (speedups 2.78, 2.88). Here "
            "held-out text is a small target's greedy output, which repeats itself.",
            *learned(inputs, INPUTS[0], TEXT_ALONE),
        ),
    )


def table_7(inputs: Inputs) -> Table:
    """Speedup by batch size, and the ratio of the highest throughputs."""
    rows: list[tuple[Cell, ...]] = []
    for recorded in inputs.recordings.of("eagle"):
        cells: list[Cell] = []
        most = {"eagle": (0.0, recorded.tokens), "plain": (0.0, recorded.tokens)}
        for batch in BATCHES:
            drafted, k = best_length(recorded, batch)
            plain_share = plain_steps(recorded.trace, recorded.cost, batch).share
            for name, share in (("eagle", drafted), ("plain", plain_share)):
                throughput = float(recorded.tokens.sum() / share.sum()) * batch
                if throughput > most[name][0]:
                    most[name] = throughput, share / batch
            if batch in SHOWN_BATCHES:
                ratio = figure((plain_share, drafted), quotient, seed=inputs.seed)
                cells.append(replace(ratio, extra={"K": float(k)}))
        best = most["plain"][1], most["eagle"][1]
        rows.append(
            (
                recorded.name,
                _temperature(recorded),
                *cells,
                figure(best, quotient, seed=inputs.seed),
            )
        )
    return Table(
        title="EAGLE Table 7: speedup by batch size, and throughput",
        headings=("recording", "T", *(f"batch {b}" for b in SHOWN_BATCHES), "throughput"),
        rows=tuple(rows),
        notes=(
            "Chains of the best length in hindsight, K from 1; sequences in lock step; costs of "
            "one sequence extrapolated by rows. throughput: highest over batches to 32 against "
            "plain decoding's. The paper, greedy, trees: Vicuna 7B 2.90, 2.87, 2.65, 2.76 and "
            "1.97; LLaMA2-Chat 70B 3.01, 2.81, 2.50, 2.40 and 1.99.",
        ),
        names=2,
    )


def figure_10(inputs: Inputs) -> Table:
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
    return Table(
        title="EAGLE Figure 10: inputs of the draft head",
        headings=("inputs", "held-out text", "sampled outputs", *(f"{n}-alpha" for n in ALPHAS)),
        rows=tuple(rows),
        notes=(
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


TABLES = {
    "eagle-1": table_1,
    "eagle-4": table_4,
    "eagle-5": table_5,
    "eagle-6": table_6,
    "eagle-7": table_7,
    "eagle-figure-10": figure_10,
}

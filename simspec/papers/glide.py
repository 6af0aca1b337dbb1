"""Tables 1 to 4 and Figures 4 and 7 of GLIDE with a CAPE (arXiv 2402.02082)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simspec.numerics.formulas import expected_speedup
from simspec.numerics.stats import difference, quotient
from simspec.output.table import Table
from simspec.papers.ablations import layer_of
from simspec.papers.card import Card, Lengths
from simspec.papers.claim import Inputs
from simspec.papers.evidence import Array
from simspec.papers.recorded import MEASURED, Recorded
from simspec.papers.table import MISSING, Cell, Figure, card_of, figure, learned, speedup, tasks_of
from simspec.policies.fixed import fixed
from simspec.policies.trees import cape, dynamic_tree
from simspec.policy.policy import Policy
from simspec.replay.lock_step import plain_steps, policy_steps
from simspec.reports.tree_rows import ROUNDS, TOKENS, prompt_figures
from simspec.trace.acceptance import by_depth
from simspec.tree.policy import TreePolicy

SAMPLED = "model", "glide", "eagle", "early_exit"
GAMMA = 5
"""GLIDE's draft length (section 5)."""
BEAMS = (4, 8)
BATCHES = (1, 2, 4, 8, 16, 32)
LENGTHS = range(1, 7)
TOP_LAYER, BLIND, TEXT_ALONE = "glide-layer9", "glide-blind", "glide-text"
PRINTED = {"model": "7.7; 51.6, 1.46; 34.8, 1.11", "glide": "6.7; 64.8, 1.97; 67.0, 2.06"}
"""Vicuna-7B in Table 1: cost; GSM8K; Code-Python. The vanilla drafter is LLAMA-68m."""


def table_1(inputs: Inputs) -> Table:
    """Cost coefficient, acceptance rate and expected speedup, under speculative sampling."""
    tasks = {"math": ("math",), "code": ("code",), "all": ()}
    rows: list[tuple[Cell, ...]] = []
    for recorded in inputs.recordings.sampled(*SAMPLED):
        accepted, tried = (x[:, 0] for x in by_depth(recorded.trace))
        c = float(recorded.cost.draft[1] / recorded.cost.baseline)

        def expected(totals: Array, c: float = c) -> Array:
            speed: Array = expected_speedup(quotient(totals), GAMMA, c)
            return speed

        cells: list[Cell] = []
        for names in tasks.values():
            chosen = tasks_of(recorded, names)
            columns = 100 * accepted[chosen], tried[chosen]
            cells.append(figure(columns, quotient, ".1f", inputs.seed))
            columns = accepted[chosen], tried[chosen]
            cells.append(figure(columns, expected, seed=inputs.seed))
        seconds = recorded.priced_seconds(fixed(GAMMA), MEASURED, inputs.seed)
        cells.append(speedup(recorded, seconds, inputs, tasks_of(recorded)))
        printed = PRINTED.get(recorded.drafter, "-")
        rows.append((recorded.name, f"{100 * c:.1f}", *cells, printed))
    metrics = [f"{task}: {metric}" for task in tasks for metric in ("acc.", "E(spd.)")]
    return Table(
        title="GLIDE Table 1: cost, acceptance rate and expected speedup, 5 tokens",
        headings=("recording", "cost", *metrics, "all: replayed", "paper, Vicuna-7B"),
        rows=tuple(rows),
        notes=(
            "Per cent, rejection rule at temperature 1: the mean of min(1, q/p) over the target's "
            "tokens, which is the sum of min(p, q). E(spd.): section 5.1's formula at that rate, "
            "flat verification. Replayed: one draw, measured costs, where wide passes cost more. "
            "eagle is of an earlier training. The paper also has Finance-Alpaca and Spider.",
        ),
    )


def table_3(inputs: Inputs) -> Table:
    """Milliseconds of drafting 5 tokens, and tokens a round: chain, beams, CAPE."""
    rows: list[tuple[Cell, ...]] = []
    searched = {
        (width, recorded.rule): recorded
        for width in BEAMS
        for recorded in inputs.recordings.further("glide", f"beam{width}")
    }
    for recorded in inputs.recordings.of("glide"):
        chain = 1000 * float(recorded.cost.draft[GAMMA])
        # the first pass of a beam search has one row, the others a row a beam
        further = 1000 * recorded.cost.node * (GAMMA - 1)
        times = [f"{chain + (w - 1) * further:.2f}" if further else "-" for w in BEAMS]
        own = recorded.target == "tiny"
        found = [searched.get((w, recorded.rule)) if own else None for w in BEAMS]
        tokens = [
            "-" if beam is None else _tokens(beam, dynamic_tree("beams"), inputs) for beam in found
        ]  # fmt: skip
        ends = [_tokens(recorded, policy, inputs) for policy in (fixed(GAMMA), cape(k=GAMMA))]
        rows.append(
            (recorded.name, f"{chain:.2f}", *times, f"{chain:.2f}", ends[0], *tokens, ends[1])
        )
    ways = "GLIDE", *(f"Beam {width}" for width in BEAMS), "+CAPE"
    return Table(
        title="GLIDE Table 3: milliseconds of the draft model's speculation, 5 tokens",
        headings=("recording", *ways, *(f"tokens: {way}" for way in ways)),
        rows=tuple(rows),
        notes=(
            "From measured passes: a beam search of width w passes w rows from its second level "
            "on. Copying and sorting beams, which the paper finds slow, and taking CAPE's sets are "
            "not priced. tokens: committed a round, of replays; the paper has none. A dash: "
            "further rows of a draft pass are not measured, beams not recorded.",
        ),
    )


def _tokens(recorded: Recorded, policy: Policy | TreePolicy, inputs: Inputs) -> Figure:
    columns = prompt_figures(recorded.trace, policy, MEASURED.of(recorded.cost))
    return figure((columns[:, TOKENS], columns[:, ROUNDS]), quotient, seed=inputs.seed)


def table_4(inputs: Inputs) -> Table:
    """Tokens a second by batch size: GLIDE at 5 tokens, at its best length, and the target only."""
    rows: list[tuple[Cell, ...]] = []
    for recorded in inputs.recordings.of("glide"):
        for batch in BATCHES:
            best, k = best_length(recorded, batch)
            seconds = (
                batch_shares(recorded, GAMMA, batch),
                best,
                plain_steps(recorded.trace, recorded.cost, batch).share,
            )
            # every slot of a batch decodes all sequences
            speeds = [figure((recorded.tokens, s), quotient, ".1f", inputs.seed) for s in seconds]
            rows.append((recorded.name, str(batch), *speeds, f"{k}"))
    return Table(
        title="GLIDE Table 4: tokens a second of each sequence, by batch size",
        headings=(
            "recording",
            "batch",
            "+GLIDE, 5 tokens",
            "+GLIDE, best length",
            "only",
            "best length",
        ),
        rows=tuple(rows),
        notes=(
            "Sequences run in lock step; costs of one sequence are extrapolated by its rows. The "
            "paper writes a batch of 2 as 2 * 108.2. The best length is chosen in hindsight.",
        ),
        names=2,
    )


def batch_shares(recorded: Recorded, k: int, batch: int) -> Array:
    """float64[S]: each prompt's share of the seconds of a batch in lock step at length k."""
    k = min(k, recorded.trace.K)
    cost, trace = MEASURED.of(recorded.cost), recorded.trace
    share: Array = policy_steps(trace, recorded.rounds(fixed(k)), cost, batch).share
    return share


def best_length(recorded: Recorded, batch: int) -> tuple[Array, int]:
    """(`batch_shares` [S], k) of the fastest of LENGTHS, in hindsight."""
    shares = {k: batch_shares(recorded, k, batch) for k in LENGTHS if k <= recorded.trace.K}
    k = min(shares, key=lambda length: float(shares[length].sum()))
    return shares[k], k


def table_2(inputs: Inputs) -> Table:
    """Acceptance rate of one that learned text alone, and of one half of whose text the target
    wrote, by task."""
    return Table(
        title="GLIDE Table 2: acceptance rate without and with outputs of the target to learn from",
        headings=("task", "text alone", "half by the target", "gain"),
        rows=_gains(inputs, TOP_LAYER, TEXT_ALONE),
        notes=(
            RATE_NOTE,
            "The paper, without distillation and with: GSM8K 64.8 and 65.0%, Finance-Alpaca 63.2 "
            "and 63.9, Spider 55.7 and 56.0, Code-Python 67.0 and 67.5. Here half of what the "
            "target wrote is greedy, and repeats itself.",
            *learned(inputs, TOP_LAYER, TEXT_ALONE),
        ),
    )


def figure_4(inputs: Inputs) -> Table:
    """Acceptance rate with the target's cache and without, by task."""
    return Table(
        title="GLIDE Figure 4: acceptance rate without and with the target's cache",
        headings=("task", "without", "layer 9", "gain"),
        rows=_gains(inputs, TOP_LAYER, BLIND),
        notes=(
            RATE_NOTE,
            "GLIDE's own figure: 5.4 to 23.5 percentage points.",
            *learned(inputs, TOP_LAYER, BLIND),
        ),
    )


def _gains(inputs: Inputs, better: str, worse: str) -> tuple[tuple[Cell, ...], ...]:
    """(task, rate of `worse`, of `better`, their difference) for each task, and for all."""
    rows: list[tuple[Cell, ...]] = []
    for task, (one, other) in _by_task(inputs, [card_of(inputs, x) for x in (better, worse)]):
        rates = [figure(tuple(rate.T), quotient, ".3f", inputs.seed) for rate in (other, one)]
        gain = figure((*one.T, *other.T), difference, "+.3f", inputs.seed)
        rows.append((task, *rates, gain))
    return tuple(rows) or ((MISSING,) * 4,)


def figure_7(inputs: Inputs) -> Table:
    """Acceptance rate by the layer of the target's cache."""
    found = [c for c in inputs.cards if c.drafter == "glide" and c.setting("cross") is True]
    found = [c for c in found if "ablations/glide-layer" in c.name]
    cards = sorted(found, key=lambda card: layer_of(str(card.setting("reads"))))
    rows: list[tuple[Cell, ...]] = [
        (task, *(figure(tuple(rate.T), quotient, ".3f", inputs.seed) for rate in rates))
        for task, rates in _by_task(inputs, cards)
    ]
    headings = [f"layer {layer_of(str(card.setting('reads'))):g}" for card in cards]
    return Table(
        title="GLIDE Figure 7: acceptance rate by layer of the target's cache",
        headings=("task", *(headings or ["layer"])),
        rows=tuple(rows) or ((MISSING,) * (1 + len(headings or [""])),),
        notes=(RATE_NOTE, *learned(inputs, *(Path(card.name).stem for card in cards))),
    )


RATE_NOTE = (
    "Share of drafted tokens accepted, of those whose predecessors were, drafts of 5 from every "
    "position of sampled outputs."
)


def _by_task(inputs: Inputs, cards: Sequence[Card | None]) -> list[tuple[str, list[Array]]]:
    """[(task, float64[S, 2] of accepted and tested tokens for each card)], all tasks last."""
    lengths = [_recorded_lengths(card) for card in cards]
    if not lengths or any(length is None for length in lengths):
        return []
    rates = [x.sums[:, [0, 2]] for x in lengths if x is not None and x.sums is not None]
    first = lengths[0]
    assert first is not None
    tasks = _tasks(inputs, first.where, len(rates[0]))
    found = [(task, [r[tasks == task] for r in rates]) for task in dict.fromkeys(tasks.tolist())]
    return [*found, ("all", rates)]


def _recorded_lengths(card: Card | None) -> Lengths | None:
    """The card's lengths along a recording, by sequence."""
    lengths = () if card is None else card.lengths[1:]
    return next((length for length in lengths if length.sums is not None), None)


def _tasks(inputs: Inputs, recording: str, sequences: int) -> Array:
    """Tasks of the sequences of a bundled recording; 'all' where they are not known."""
    for recorded in inputs.recordings.of("model", "early_exit", "glide"):
        if recorded.name == recording and recorded.trace.sequences == sequences:
            tasks: Array = np.array(recorded.trace.meta.tasks or ["prompts"] * sequences)
            return tasks
    return np.array(["prompts"] * sequences)


TABLES = {
    "glide-1": table_1,
    "glide-2": table_2,
    "glide-3": table_3,
    "glide-4": table_4,
    "glide-figure-4": figure_4,
    "glide-figure-7": figure_7,
}

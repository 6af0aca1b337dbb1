"""Table 4 and Figure 3 of S2D (arXiv 2407.01955)."""

import numpy as np

from simspec.claims.claim import Inputs
from simspec.claims.evidence import Array
from simspec.claims.recorded import PRICES, Price, Recorded, by_prompt, crossed
from simspec.claims.sorted_exits import SortedRecording, alone, cascades, sorted_recording
from simspec.papers.table import (
    FLAT,
    MISSING,
    Cell,
    Figure,
    PaperTable,
    bundled,
    card_of,
    figure,
    learned,
    plain,
    quotient,
)
from simspec.policies.fixed import fixed
from simspec.trace.trace import Trace, load_trace

SHOWN = tuple(price for price in PRICES if price.ratio is None or price.flat)
DRAFTED = 4
"""Tokens of a draft in Figure 3, as `simspec cascade` takes by default."""
COST_NOTE = (
    "At c a token through all layers of the sorted drafter costs c plain steps, and verification "
    "one; measured: layers and heads as in the target's measured early exit."
)
Outcome = tuple[Array, Array, Trace, float]
"""(seconds, rounds) float64[C, S] of C choices, their recording, and a plain step's seconds."""


def table_4(inputs: Inputs) -> PaperTable:
    """A model of its own, single exits, and the cascade: speedup and mean accepted tokens."""
    by_price = [(price, _outcomes(inputs, price)) for price in SHOWN]
    shown_mat = dict(by_price)[FLAT]
    rows: list[tuple[Cell, ...]] = []
    for name in shown_mat:
        speeds = [_speed_and_mat(of[name], inputs)[0] for _, of in by_price if name in of]
        rows.append((name, *speeds, _speed_and_mat(shown_mat[name], inputs)[1]))
    names = [MISSING] * (len(SHOWN) + 1)
    return PaperTable(
        "S2D Table 4: speedup and mean accepted tokens (MAT)",
        ("method", *(price.name for price in SHOWN), f"MAT at {FLAT.name}"),
        tuple(rows) or (("SoFT + S2D", *names),),
        (
            COST_NOTE,
            "Draft lengths, and the cascade's thresholds, are chosen on the other half of the "
            "prompts. `model` is as costly as the sorted drafter at c. One target: the paper has "
            "three.",
            *learned(inputs, "sorted-together", "sorted-single", "model"),
        ),
    )


def _outcomes(inputs: Inputs, price: Price) -> dict[str, Outcome]:
    """Outcomes by method, {} without recordings."""
    found: dict[str, Outcome] = {}
    model = _model(inputs, price)
    if model is not None:
        longest = range(1, min(6, model.trace.K) + 1)
        rounds = [model.rounds(fixed(k)) for k in longest]
        seconds = np.stack([by_prompt(model.cost.seconds(r), r) for r in rounds])
        counts = np.stack([np.diff(r.offset).astype(np.float64) for r in rounds])
        found["model + SD"] = seconds, counts, model.trace, model.cost.baseline
    own = _sorted(inputs, price)
    if own is None:
        return {}
    baseline, layers = own.cost.baseline, own.drafts.layers
    single = card_of(inputs, "sorted-single")
    if single is not None and single.recording.is_file():
        trace = load_trace(single.recording)
        found[f"SFT L{layers[-1]} + SD"] = *own.last_exit(trace), trace, baseline
    for exit, layer in enumerate(layers):
        lengths = own.all_lengths([alone(own.drafts.exits, exit)])
        found[f"SoFT L{layer} + SD"] = *lengths, own.trace, baseline
    lengths = own.all_lengths(cascades(own.drafts.exits))
    found["SoFT + S2D"] = *lengths, own.trace, baseline
    return found


def _model(inputs: Inputs, price: Price) -> Recorded | None:
    """The ablation `model` along its recording, at the costs of the bundled model of its size."""
    card, measured = card_of(inputs, "model"), bundled(inputs, "model", "tiny-model-coupled")(price)
    if card is None or measured is None or not card.recording.is_file():
        return None
    trace = load_trace(card.recording)
    return Recorded(card.name, "model", measured.target, trace, measured.cost, measured.excluded)


def _sorted(inputs: Inputs, price: Price) -> SortedRecording | None:
    card = card_of(inputs, "sorted-together")
    return None if card is None else sorted_recording(card, inputs, price)


def _speed_and_mat(outcome: Outcome, inputs: Inputs) -> tuple[Figure, Figure]:
    seconds, rounds, trace, baseline = outcome
    tokens = np.diff(trace.offset).astype(np.float64)
    chosen, setting = crossed(seconds, trace)
    counts = rounds[setting, np.arange(trace.sequences)]
    return (
        figure((tokens * baseline, chosen), quotient, seed=inputs.seed),
        figure((tokens, counts), quotient, seed=inputs.seed),
    )


def figure_3(inputs: Inputs) -> PaperTable:
    """Speedup by the thresholds of the exits."""
    priced = [(price, own) for price in SHOWN if (own := _sorted(inputs, price)) is not None]
    rows: list[tuple[Cell, ...]] = []
    if priced:
        exits = priced[0][1].drafts.exits
        for values in [alone(exits, e) for e in range(exits)] + cascades(exits):
            cells: list[Cell] = []
            for _, own in priced:
                tokens = np.diff(own.trace.offset).astype(np.float64)
                seconds, rounds = own.run(values, DRAFTED)
                cells.append(
                    figure((tokens * own.cost.baseline, seconds), quotient, seed=inputs.seed)
                )
            mat = plain(float(tokens.sum() / rounds.sum()))
            rows.append(("/".join(f"{value:g}" for value in values), *cells, mat))
    return PaperTable(
        f"S2D Figure 3: speedup by thresholds, drafts of {DRAFTED}",
        ("thresholds", *(price.name for price in SHOWN), "MAT"),
        tuple(rows) or (("-", *[MISSING] * (len(SHOWN) + 1)),),
        (COST_NOTE, "0 always exits, 1 never. The threshold of the last exit is a policy."),
    )

"""Cells of tables in the shape of published ones, with intervals over prompts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.numerics.stats import OVER_PRICES, OVER_PROMPTS, Estimate, estimate, quotient, stacked
from simspec.output.table import Table
from simspec.papers.ablations import exit_recorded
from simspec.papers.card import Card
from simspec.papers.claim import Inputs
from simspec.papers.evidence import LEVEL, Array
from simspec.papers.recorded import MEASURED, PRICES, Price, Recorded, by_prompt
from simspec.policy.policy import Policy

RESAMPLES = 2000


@dataclass(frozen=True)
class Figure:
    """A cell: an estimate over prompts, and further figures in parentheses.

    | field | meaning |
    | --- | --- |
    | estimate | Estimate |
    | form | of the estimate, as '.2f' |
    | extra | {name: figure} |
    """

    estimate: Estimate
    form: str = ".2f"
    extra: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        words = ", ".join(f"{name} {value:.1f}" for name, value in self.extra.items())
        return self.estimate.text(self.form) + (f" ({words})" if words else "")

    def to_dict(self) -> dict[str, float | None]:
        """{value, low, high} and the further figures."""
        return {**self.estimate.to_dict(), **self.extra}


Cell = str | Figure


def covered(table: Table) -> list[str]:
    """Sources of error that the table's intervals cover: prices if those of any figure do."""
    figures = [cell for row in table.rows for cell in row if isinstance(cell, Figure)]
    priced = any(figure.estimate.covers == OVER_PRICES for figure in figures)
    return list(OVER_PRICES if priced else OVER_PROMPTS)


def figure(
    columns: Sequence[Array],
    statistic: Callable[[Array], Any],
    form: str = ".2f",
    seed: int = 0,
    extra: Mapping[str, float] | None = None,
) -> Figure:
    """A figure that is a function of sums over prompts; without bounds where some resample has
    none."""
    options: dict[str, Any] = {"level": LEVEL, "resamples": RESAMPLES, "seed": seed}
    return Figure(estimate(stacked(*columns), statistic, **options), form, extra or {})


def plain(value: float, form: str = ".2f") -> Figure:
    """A figure without an interval."""
    return Figure(Estimate(value, float("nan"), float("nan"), LEVEL, 0), form)


Mask = NDArray[np.bool_]
AtPrice = Callable[[Price], Recorded | None]
"""The recording with its costs at a price; None where it is missing."""
FLAT = next(price for price in PRICES if price.flat and price.ratio == 0.10)
SHOWN = (MEASURED, FLAT)
"""Prices of tables: measured, and the papers' regime."""
TASKS = {"math": ("math",), "summary": ("summary", "summarization"), "all": ()}
"""Columns of EESD's tables: its Gsm8k and XSum, and all tasks."""
MISSING = "no card"


def bundled(inputs: Inputs, drafter: str, name: str) -> AtPrice:
    """A bundled recording."""
    found = [r for r in inputs.recordings.of(drafter) if r.name == name]
    return lambda price: at(found[0], price) if found else None


def of_card(inputs: Inputs, name: str) -> AtPrice:
    """The recording next to an early exit's card."""
    card = card_of(inputs, name)
    return lambda price: None if card is None else exit_recorded(card, inputs, price)


def card_of(inputs: Inputs, name: str) -> Card | None:
    """The ablation's card of this name."""
    named = {Path(card.name).stem: card for card in inputs.cards if "ablations/" in card.name}
    return named.get(name)


def learned(inputs: Inputs, *names: str) -> tuple[str, ...]:
    """A sentence on the tokens that these ablations learned; () without their cards."""
    cards = {name: card for name in names if (card := card_of(inputs, name)) is not None}
    tokens = {name: f"{card.data['tokens']:,}" for name, card in cards.items()}
    if len(different := set(tokens.values())) == 1:
        return (f"Each ablation learned {different.pop()} tokens.",)
    by_name = ", ".join(f"{name} {count}" for name, count in tokens.items())
    return (f"Tokens learned: {by_name}.",) if tokens else ()


def at(recorded: Recorded, price: Price) -> Recorded:
    """The recording with its costs at this price."""
    return replace(recorded, cost=price.of(recorded.cost))


def tasks_of(recorded: Recorded, names: Sequence[str] = ()) -> Mask:
    """bool[S]: the prompts of these tasks; () for all."""
    tasks = recorded.trace.meta.tasks
    if not names or not tasks:
        return np.full(recorded.trace.sequences, not names)
    chosen: Mask = np.isin(np.array(tasks), list(names))
    return chosen


def speed(recorded: Recorded, policy: Policy, inputs: Inputs, chosen: Mask) -> Figure:
    """Speedup of a policy over plain decoding on some prompts, with EESD's HM in per cent."""
    seconds = recorded.priced_seconds(policy, MEASURED, inputs.seed, inputs.draws)
    return speedup(recorded, seconds, inputs, chosen, {"HM": hm(recorded, policy, inputs, chosen)})


def speedup(
    recorded: Recorded,
    seconds: Array,
    inputs: Inputs,
    chosen: Mask,
    extra: dict[str, float] | None = None,
) -> Figure:
    """Speedup of seconds [S, 1 + R] over plain decoding on some prompts."""
    plain = recorded.tokens * recorded.cost.baseline
    columns = plain[chosen], seconds[chosen]
    return figure(columns, quotient, seed=inputs.seed, extra=extra)


def hm(recorded: Recorded, policy: Policy, inputs: Inputs, chosen: Mask) -> float:
    """Harmonic mean of v_d and r_d in per cent: 2 accepted / (computed + output tokens)."""
    accepted, paid = accepted_and_paid(recorded, policy, inputs)
    return float(200 * accepted[chosen].sum() / paid[chosen].sum())


def accepted_and_paid(recorded: Recorded, policy: Policy, inputs: Inputs) -> tuple[Array, Array]:
    """(accepted tokens, computed and output tokens) of each prompt, float64[S], over all draws."""
    accepted, paid = np.zeros_like(recorded.tokens), np.zeros_like(recorded.tokens)
    for seed in range(inputs.seed, inputs.seed + (inputs.draws if policy.random else 1)):
        rounds = recorded.rounds(policy, seed)
        accepted += by_prompt(rounds.accepted.astype(np.float64), rounds)
        paid += by_prompt(rounds.computed.astype(np.float64), rounds) + recorded.tokens
    return accepted, paid


def speed_cells(source: AtPrice, policy: Policy, inputs: Inputs) -> list[Cell]:
    """Speedups by the columns of TASKS at measured costs, then of all tasks at flat c = .10."""
    return cells(source, lambda recorded, chosen: speed(recorded, policy, inputs, chosen))


def cells(source: AtPrice, cell: Callable[[Recorded, Mask], Cell]) -> list[Cell]:
    """The cells of `speed_headings`, by what gives the cell of some prompts."""
    measured, flat = (source(price) for price in SHOWN)
    if measured is None or flat is None:
        return [MISSING] * (len(TASKS) + 1)
    found = []
    for names in TASKS.values():
        chosen = tasks_of(measured, names)
        found.append(cell(measured, chosen) if chosen.any() else "-")
    return [*found, cell(flat, tasks_of(flat))]


def speed_headings() -> tuple[str, ...]:
    """Of `speed_cells`."""
    return (*TASKS, "all, flat c = .10")

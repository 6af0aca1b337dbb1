"""Claims about training: cards that differ in one setting, at an equal budget."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from simspec.claims.card import Card, Lengths, pairs, shared_lengths
from simspec.claims.claim import Inputs
from simspec.claims.evidence import (
    POSITIVE,
    Array,
    Evidence,
    Source,
    excess,
    observe,
    student_interval,
)
from simspec.claims.exit_costs import ExitForm, exit_cost
from simspec.claims.price import MEASURED, Price
from simspec.claims.recorded import MOST_REPEATED, Recorded
from simspec.claims.target import target_of
from simspec.policies.thompson import beta_ts
from simspec.stats import MIN_PROMPTS, Interval
from simspec.trace import load_trace

SHIFTED, UNSHIFTED, TOKEN, FEATURE = (
    "feature&shifted_token", "feature&unshifted_token", "token", "feature",
)  # fmt: skip
SHARE = (0.05, 0.10)
"""EESD's suggestion for N over the number of layers (section 5.4)."""
LONGEST = 10
"""EESD's K (its Table 4)."""


def exit_layers(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 7: one layer behind the exit is better than none, and faster than none and two."""
    found = []
    for one, other in pairs(inputs.cards, "early_exit", {"settings.layers", "settings.own_head"}):
        layers = one.setting("layers"), other.setting("layers")
        if not _is_near(one):
            continue
        if layers == (1, 0):
            found += longer("with the layer less without", one, other, price)
            found += _faster("no layer over one", one, other, inputs, price)
        if layers == (1, 2):
            found += _faster("two layers over one", one, other, inputs, price)
    return found


def exit_depth(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 8: N at 5 to 10% of the target's layers is faster than another N."""
    found = []
    for near, other in pairs(inputs.cards, "early_exit", {"settings.depth"}):
        if _is_near(near) and not _is_near(other) and near.setting("layers") == 1:
            part = f"N={other.setting('depth')} over N={near.setting('depth')}"
            found += _faster(part, near, other, inputs, price)
    return found


def self_distillation(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 9: outputs of the target in the training text lengthen accepted drafts."""
    found = []
    for with_it, without in pairs(inputs.cards, "early_exit", {"blend"}):
        if _is_more(with_it.asked.get("blend"), without.asked.get("blend"), 0):
            found += longer("with self-distillation less without", with_it, without, price)
    return found


def target_cache(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 11: GLIDE with the target's cache against none, and with upper against lower layers."""
    found = []
    for one, other in pairs(inputs.cards, "glide", {"settings.cross", "settings.reads"}):
        crosses = one.setting("cross"), other.setting("cross")
        reads = str(one.setting("reads")), str(other.setting("reads"))
        if crosses == (True, False):
            part = f"reading layer {reads[0]} less reading no cache"
            found += longer(part, one, other, price)
        if crosses == (True, True) and layer_of(reads[0]) > layer_of(reads[1]):
            part = f"reading layer {reads[0]} less layer {reads[1]}"
            found += longer(part, one, other, price)
    return found


def eagle_inputs(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 14: features against tokens, and the gain of shifted tokens against that of tokens."""
    found = []
    alike = pairs(inputs.cards, "eagle", {"settings.inputs"})
    for feature, other in alike:
        if (feature.setting("inputs"), other.setting("inputs")) == (FEATURE, TOKEN):
            found += longer("features less tokens", feature, other, price)
    for three in _triples(alike):
        part = "gain of shifting the token less that of adding it"
        for lengths in shared_lengths(*three):
            found.append(_compared(part, three, lengths, (1, -2, 1), price))
    return found


def _triples(alike: list[tuple[Card, Card]]) -> Iterator[tuple[Card, Card, Card]]:
    of = {
        (a.setting("inputs"), b.setting("inputs"), a.name): (a, b) for a, b in alike
    }  # by the name of the first: one unshifted card for each other
    for (first, second, _), (shifted, middle) in of.items():
        if (first, second) == (SHIFTED, UNSHIFTED):
            other = of.get((UNSHIFTED, FEATURE, middle.name))
            if other is not None:
                yield shifted, middle, other[1]


def longer(part: str, better: Card, worse: Card, price: Price) -> list[Evidence]:
    """The accepted length of one card less that of another, on all sequences that they share."""
    name, cards = f"accepted length {part}", (better, worse)
    return [
        _compared(name, cards, lengths, (1, -1), price) for lengths in shared_lengths(better, worse)
    ]


def _compared(
    part: str,
    cards: Sequence[Card],
    lengths: Sequence[Lengths],
    factors: Sequence[float],
    price: Price,
) -> Evidence:
    """The sum of accepted lengths times factors: paired by sequence where all cards keep them."""
    repeated = [length.repeated for length in lengths if length.repeated is not None]
    counted = not repeated or max(repeated) < MOST_REPEATED
    names = [Path(card.name).stem for card in cards]
    source = Source(f"{' / '.join(names)}: {lengths[0].where}", cards[0].device, counted)
    figures = {f"{n}": length.interval.value for n, length in zip(names, lengths)}
    sums = [length.sums for length in lengths if length.sums is not None]
    if len(sums) == len(lengths):
        columns = np.concatenate([x[:, :2] for x in sums], axis=1)
        columns = columns[(columns[:, 1::2] > 0).all(axis=1)]
        if len(columns) >= MIN_PROMPTS:

            def statistic(totals: Array) -> Array:
                mean: Array = totals[..., 0::2] / totals[..., 1::2]
                return mean @ np.array(factors, np.float64)

            return observe(part, source, price.name, columns, statistic, POSITIVE, figures)
    value = sum(f * length.interval.value for f, length in zip(factors, lengths))
    error = math.hypot(*(f * _error(length.interval) for f, length in zip(factors, lengths)))
    interval = student_interval(value, error, min(x.interval.prompts for x in lengths))
    return Evidence(part, source, price.name, interval, error, POSITIVE, figures)


def _faster(part: str, ours: Card, theirs: Card, inputs: Inputs, price: Price) -> list[Evidence]:
    """How much slower one early exit is than another under Beta-TS, as EESD's Figures 4 and 5.

    Both are recorded beside their cards on the same sequences; costs are those of the measured
    early exit, scaled by `exit_cost`. [] without recordings or costs.
    """
    both = [exit_recorded(card, inputs, price) for card in (ours, theirs)]
    if both[0] is None or both[1] is None:
        return []
    if not np.array_equal(both[0].trace.token, both[1].trace.token):
        return []
    policy = beta_ts(K=min(LONGEST, both[0].trace.K, both[1].trace.K))
    seconds = [
        recorded.seconds(policy, MEASURED, inputs.seed, inputs.draws)
        for recorded in both
        if recorded is not None
    ]
    names = " / ".join(Path(card.name).stem for card in (ours, theirs))
    source = Source(names, both[0].trace.meta.device, both[0].counted)
    columns = np.stack((seconds[1], seconds[0]), -1)
    name = f"time of {part} under Beta-TS, less 1"
    return [observe(name, source, price.name, columns, excess, seed=inputs.seed)]


def exit_recorded(card: Card, inputs: Inputs, price: Price) -> Recorded | None:
    """The recording beside an early exit's card, at this price; None without one, or costs."""
    target = target_of(card.target)
    if target is None or not card.recording.is_file():
        return None
    measured = [r for r in inputs.recordings.of("early_exit") if r.target == target.name]
    if not measured:
        return None
    trace, base = load_trace(card.recording), price.of(measured[0].cost)
    form = ExitForm(int(card.setting("depth")), int(card.setting("layers")))
    cost = exit_cost(base, target.exit, form, target.layers)
    alike = [r for r in measured if np.array_equal(r.trace.token, trace.token)]
    counted = alike[0].counted if alike else True
    return Recorded(Path(card.name).stem, "early_exit", target.name, trace, cost, counted)


def _is_near(card: Card) -> bool:
    """Whether N is 5 to 10% of the target's layers."""
    target, depth = target_of(card.target), card.setting("depth")
    if target is None or not isinstance(depth, int):
        return False
    return SHARE[0] <= depth / target.layers <= SHARE[1]


def _error(length: Interval) -> float:
    """Standard error that an interval implies."""
    unit = student_interval(0.0, 1.0, length.prompts)
    return (length.high - length.low) / (unit.high - unit.low)


def layer_of(reads: str) -> float:
    """The highest of the layers that GLIDE reads, as '[9]'."""
    numbers = [float(part) for part in reads.strip("[]").split(",") if part.strip().isdigit()]
    return max(numbers, default=float("nan"))


def _is_more(value: object, other: object, least: float) -> bool:
    numbers = [x for x in (value, other) if isinstance(x, int | float)]
    return len(numbers) == 2 and numbers[0] > numbers[1] and bool(np.isclose(numbers[1], least))

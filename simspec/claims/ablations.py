"""Claims about training: cards that differ in one setting, at an equal budget."""

import math
from collections.abc import Callable, Iterator

import numpy as np

from simspec.claims.card import Card, pairs
from simspec.claims.claim import Inputs
from simspec.claims.evidence import POSITIVE, Evidence, Source, student_interval
from simspec.claims.price import Price
from simspec.stats import Interval

SHIFTED, UNSHIFTED, TOKEN, FEATURE = (
    "feature&shifted_token", "feature&unshifted_token", "token", "feature",
)  # fmt: skip
TARGET_LAYERS = {
    "3f3badec853498770317b723278334157ccfd0808eb8557b6d0c41f9f19ad5de": ("tiny", 10),
    "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd": ("smollm2", 30),
}
"""Bundled targets by the hash of their weights: name and number of layers."""
SHARE = (0.05, 0.10)
"""EESD's suggestion for N over the number of layers (section 5.4)."""


def exit_layers(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 7: one layer behind the exit is better than none, and faster than two."""
    allowed = {"settings.layers", "settings.own_head"}
    found = []
    for one, other in pairs(inputs.cards, "early_exit", allowed):
        layers = one.setting("layers"), other.setting("layers")
        if layers == (1, 0):
            found.append(_longer("with the layer less without", one, other, price))
        if layers == (1, 2):
            found += _faster("one layer less two", (one, other), inputs, price)
    return found


def exit_depth(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 8: N at 5 to 10% of the target's layers is faster than another N."""
    found = []
    for near, other in pairs(inputs.cards, "early_exit", {"settings.depth"}):
        layers = TARGET_LAYERS.get(near.target, ("", 0))[1]
        if not layers:
            continue
        inside = [SHARE[0] <= _number(c, "depth") / layers <= SHARE[1] for c in (near, other)]
        if inside == [True, False]:
            part = f"N={near.setting('depth')} less N={other.setting('depth')}"
            found += _faster(part, (near, other), inputs, price)
    return found


def self_distillation(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 9: outputs of the target in the training text lengthen accepted drafts."""
    return [
        _longer("with self-distillation less without", with_it, without, price)
        for with_it, without in pairs(inputs.cards, "early_exit", {"blend"})
        if _is_more(with_it.asked.get("blend"), without.asked.get("blend"), 0)
    ]


def target_cache(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 11: GLIDE with the target's cache against none, and with upper against lower layers."""
    found = []
    for one, other in pairs(inputs.cards, "glide", {"settings.cross", "settings.reads"}):
        crosses = one.setting("cross"), other.setting("cross")
        if crosses == (True, False):
            found.append(_longer("with the target's cache less without", one, other, price))
        reads = str(one.setting("reads")), str(other.setting("reads"))
        if crosses == (True, True) and _layer(reads[0]) > _layer(reads[1]):
            part = f"reading layer {reads[0]} less layer {reads[1]}"
            found.append(_longer(part, one, other, price))
    return found


def eagle_inputs(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 14: features against tokens, and the gain of shifted tokens against that of tokens."""
    found = []
    alike = pairs(inputs.cards, "eagle", {"settings.inputs"})
    for feature, other in alike:
        if (feature.setting("inputs"), other.setting("inputs")) == (FEATURE, TOKEN):
            found.append(_longer("features less tokens", feature, other, price))
    for shifted, middle, feature in _triples(alike):
        values = [card.length.value for card in (shifted, middle, feature)]
        errors = [_error(card.length) for card in (shifted, middle, feature)]
        found.append(
            _evidence(
                "gain of shifting the token less that of adding it",
                (shifted, middle, feature),
                price,
                values[0] - 2 * values[1] + values[2],
                math.hypot(errors[0], 2 * errors[1], errors[2]),
            )
        )
    return found


def sorted_training(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 18: a sorted drafter trained at all exits together against one at its last exit."""
    return [
        _longer("trained together less at the last exit alone", together, alone, price)
        for together, alone in pairs(inputs.cards, "sorted", {"settings.together"})
        if together.setting("together") is True and alone.setting("together") is False
    ]


def _triples(alike: list[tuple[Card, Card]]) -> Iterator[tuple[Card, Card, Card]]:
    of = {
        (a.setting("inputs"), b.setting("inputs"), a.name): (a, b) for a, b in alike
    }  # by the name of the first: one unshifted card for each other
    for (first, second, _), (shifted, middle) in of.items():
        if (first, second) == (SHIFTED, UNSHIFTED):
            other = of.get((UNSHIFTED, FEATURE, middle.name))
            if other is not None:
                yield shifted, middle, other[1]


def _longer(part: str, better: Card, worse: Card, price: Price) -> Evidence:
    """The accepted length of one card less that of another."""
    gap = better.length.value - worse.length.value
    error = math.hypot(_error(better.length), _error(worse.length))
    return _evidence(f"accepted length {part}", (better, worse), price, gap, error)


def _faster(part: str, cards: tuple[Card, Card], inputs: Inputs, price: Price) -> list[Evidence]:
    """The expected speedup of one early exit less that of another, at K tokens a round.

    (1 + accepted length) / (K c + V), V a verification of K tokens. c is of the recorded early exit
    of the same target, and grows with the layers that a draft step runs. [] without a recording.
    """
    target = TARGET_LAYERS.get(cards[0].target, ("", 0))[0]
    recorded = [r for r in inputs.recordings.of("early_exit") if r.target == target and r.counted]
    if not recorded:
        return []
    cost, K = price.of(recorded[0].cost), cards[0].K
    if K > cost.K:
        return []
    verify, step = cost.verify[K] / cost.baseline, cost.draft[K] / K / cost.baseline
    first = _number(cards[0], "depth") + _number(cards[0], "layers")

    def speedup(card: Card) -> tuple[float, float]:
        layers = _number(card, "depth") + _number(card, "layers")
        round_cost = float(verify + K * step * layers / first)
        return (1 + card.length.value) / round_cost, _error(card.length) / round_cost

    (ours, error), (theirs, other) = map(speedup, cards)
    name = f"expected speedup {part}"
    return [_evidence(name, cards, price, ours - theirs, math.hypot(error, other))]


def _evidence(
    part: str, cards: tuple[Card, ...], price: Price, value: float, error: float
) -> Evidence:
    """Cards hold no figures by sequence, so they are taken as independent: intervals are wide."""
    texts = min(card.length.prompts for card in cards)
    source = Source(" / ".join(card.name for card in cards), cards[0].device)
    figures = {f"accepted length of {card.name}": card.length.value for card in cards}
    interval = student_interval(value, error, texts)
    return Evidence(part, source, price.name, interval, error, POSITIVE, figures)


def _error(length: Interval) -> float:
    """Standard error that an interval implies."""
    unit = student_interval(0.0, 1.0, length.prompts)
    return (length.high - length.low) / (unit.high - unit.low)


def _number(card: Card, setting: str) -> float:
    value = card.setting(setting)
    return float(value) if isinstance(value, int | float) else float("nan")


def _layer(reads: str) -> float:
    """The highest of the layers that GLIDE reads, as '[9]'."""
    numbers = [float(part) for part in reads.strip("[]").split(",") if part.strip().isdigit()]
    return max(numbers, default=float("nan"))


def _is_more(value: object, other: object, least: float) -> bool:
    numbers = [x for x in (value, other) if isinstance(x, int | float)]
    return len(numbers) == 2 and numbers[0] > numbers[1] and bool(np.isclose(numbers[1], least))


TESTS: tuple[Callable[[Inputs, Price], list[Evidence]], ...] = (
    exit_layers, exit_depth, self_distillation, target_cache, eagle_inputs, sorted_training,
)  # fmt: skip
"""All of them read cards alone, or cards and measured costs."""

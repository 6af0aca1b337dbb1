"""Claims about training: cards that differ in one setting, at an equal budget."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from simspec.numerics.stats import MIN_PROMPTS, Estimate
from simspec.papers.card import Card, Lengths, pairs, shared_lengths
from simspec.papers.claim import EAGLE, EESD, GLIDE, Claim, Inputs
from simspec.papers.evidence import (
    POSITIVE,
    Array,
    Effect,
    EffectSource,
    excess,
    observe,
    student_interval,
)
from simspec.papers.recorded import (
    MEASURED,
    MOST_REPEATED,
    REPETITIVE,
    ExitForm,
    Price,
    Recorded,
    exit_cost,
    target_of,
)
from simspec.policies.thompson import beta_ts
from simspec.trace.trace import load_trace

SHIFTED, UNSHIFTED, TOKEN, FEATURE = (
    "feature&shifted_token", "feature&unshifted_token", "token", "feature",
)  # fmt: skip
SHARE = (0.05, 0.10)
"""EESD's suggestion for N over the number of layers (section 5.4)."""
LONGEST = 10
"""EESD's K (its Table 4)."""


def layer_lengthens(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 7a: drafts of one layer after the exit are accepted further than those of none."""
    return [
        evidence
        for one, none in _layers(inputs, 0)
        for evidence in longer("with the layer less without", one, none, price)
    ]


def layer_pays(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 7b: one layer after the exit is faster than none."""
    return [
        evidence
        for one, none in _layers(inputs, 0)
        for evidence in _faster("no layer over one", one, none, inputs, price)
    ]


def second_layer_costs(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 7c: one layer after the exit is faster than two."""
    return [
        evidence
        for one, two in _layers(inputs, 2)
        for evidence in _faster("two layers over one", one, two, inputs, price)
    ]


def _layers(inputs: Inputs, other: int) -> list[tuple[Card, Card]]:
    """Cards of one and of `other` layers after an exit at EESD's share of the target."""
    alike = pairs(inputs.cards, "early_exit", {"settings.layers", "settings.own_head"})
    return [
        (a, b)
        for a, b in alike
        if _is_near(a) and (a.setting("layers"), b.setting("layers")) == (1, other)
    ]


def exit_depth(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 8: N at 5 to 10% of the target's layers is faster than another N."""
    found = []
    for near, other in pairs(inputs.cards, "early_exit", {"settings.depth"}):
        if _is_near(near) and not _is_near(other) and near.setting("layers") == 1:
            part = f"N={other.setting('depth')} over N={near.setting('depth')}"
            found += _faster(part, near, other, inputs, price)
    return found


def self_distillation(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 9: outputs of the target in the training text lengthen accepted drafts."""
    found = []
    for with_it, without in pairs(inputs.cards, "early_exit", {"blend"}):
        if _is_more(with_it.asked.get("blend"), without.asked.get("blend"), 0):
            found += longer("with self-distillation less without", with_it, without, price)
    return found


def target_cache(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 11a: GLIDE that reads the target's cache against GLIDE that reads none."""
    found = []
    for one, other, reads in _readers(inputs, False):
        found += longer(f"reading layer {reads[0]} less reading no cache", one, other, price)
    return found


def upper_layers(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 11b: GLIDE that reads an upper layer's cache against one that reads a lower one's."""
    found = []
    for one, other, reads in _readers(inputs, True):
        if layer_of(reads[0]) > layer_of(reads[1]):
            found += longer(f"reading layer {reads[0]} less layer {reads[1]}", one, other, price)
    return found


def _readers(inputs: Inputs, other_reads: bool) -> list[tuple[Card, Card, tuple[str, str]]]:
    """(card that reads the cache, one that does or does not, the layers that each names)."""
    return [
        (a, b, (str(a.setting("reads")), str(b.setting("reads"))))
        for a, b in pairs(inputs.cards, "glide", {"settings.cross", "settings.reads"})
        if (a.setting("cross"), b.setting("cross")) == (True, other_reads)
    ]


def features_or_tokens(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 14a: EAGLE that reads features against EAGLE that reads tokens."""
    found = []
    for feature, other in pairs(inputs.cards, "eagle", {"settings.inputs"}):
        if (feature.setting("inputs"), other.setting("inputs")) == (FEATURE, TOKEN):
            found += longer("features less tokens", feature, other, price)
    return found


def shifted_tokens(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 14b: what shifting the token gains less what adding the token gains."""
    part = "gain of shifting the token less that of adding it"
    return [
        _compared(part, three, lengths, (1, -2, 1), price)
        for three in _triples(pairs(inputs.cards, "eagle", {"settings.inputs"}))
        for lengths in shared_lengths(*three)
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


def longer(part: str, better: Card, worse: Card, price: Price) -> list[Effect]:
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
) -> Effect:
    """The sum of accepted lengths times factors: paired by sequence where all cards keep them."""
    repeated = [length.repeated for length in lengths if length.repeated is not None]
    excluded = REPETITIVE if max(repeated, default=0.0) >= MOST_REPEATED else ""
    names = [card.label for card in cards]
    source = EffectSource(f"{' / '.join(names)}: {lengths[0].where}", cards[0].device, excluded)
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
    return Effect(part, source, price.name, interval, error, POSITIVE, figures)


def _faster(part: str, ours: Card, theirs: Card, inputs: Inputs, price: Price) -> list[Effect]:
    """How much slower one early exit is than another under Beta-TS, as EESD's Figures 4 and 5.

    Both cards come with recordings of the same sequences; costs are those of the measured early
    exit, scaled by `exit_cost`. [] without recordings or costs.
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
    names = " / ".join(card.label for card in (ours, theirs))
    source = EffectSource(names, both[0].trace.meta.device, both[0].excluded)
    columns = np.stack((seconds[1], seconds[0]), -1)
    name = f"time of {part} under Beta-TS, less 1"
    return [observe(name, source, price.name, columns, excess, seed=inputs.seed)]


def exit_recorded(card: Card, inputs: Inputs, price: Price) -> Recorded | None:
    """The recording next to an early exit's card, at this price; None without one, or costs."""
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
    excluded = alike[0].excluded if alike else ""
    return Recorded(card.label, "early_exit", target.name, trace, cost, excluded)


def _is_near(card: Card) -> bool:
    """Whether N is 5 to 10% of the target's layers."""
    target, depth = target_of(card.target), card.setting("depth")
    if target is None or not isinstance(depth, int):
        return False
    return SHARE[0] <= depth / target.layers <= SHARE[1]


def _error(length: Estimate) -> float:
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


CLAIMS = (
    Claim(
        7, "The layer after the early exit raises acceptance.", EESD, "Table 4",
        layer_lengthens, (), part="a", needs="no card",
        detail="Cards of 1 and 0 layers at N of 5 to 10%: accepted lengths.",
        regime="LLaMA-2-13B, HM with and without the layer.",
    ),
    Claim(
        7, "The layer after the early exit pays.", EESD, "Table 4", layer_pays,
        part="b", needs="no card", detail="The same cards: time under Beta-TS.",
        regime="LLaMA-2-13B, speedup with and without the layer.",
    ),
    Claim(
        7, "A second layer after the early exit does not pay.", EESD, "Figure 5",
        second_layer_costs, part="c", needs="no card",
        detail="Cards of 1 and 2 layers: time under Beta-TS.",
        regime="more layers after the exit, under Beta-TS.",
    ),
    Claim(
        8, "N at 5 to 10% of the target's layers is best.", EESD, "section 5.4, Figure 4",
        exit_depth, needs="no card",
        detail="Time under Beta-TS, on recordings of exits with one layer after them.",
        regime="LLaMA-2 of 40 and 80 layers, under Beta-TS.",
    ),
    Claim(
        9, "Self-distillation helps.", EESD, "Table 4", self_distillation, (),
        needs="no card", detail="Cards with and without the target's outputs.",
        regime="LLaMA-2-13B, open data with and without the target's outputs.",
    ),
    Claim(
        11, "Reading the target's cache raises acceptance.", GLIDE, "Figure 4",
        target_cache, (), part="a", needs="no card",
        detail="Cards with and without cross-attention.",
        regime="GLIDE against a vanilla drafter of its size, targets of 7B to 33B.",
    ),
    Claim(
        11, "Upper layers' caches raise acceptance more.", GLIDE, "Figure 7",
        upper_layers, (), part="b", needs="no card",
        detail="Each pair of cards that read different layers.",
        regime="GLIDE that reads one layer or another of a 7B target.",
    ),
    Claim(
        14, "Features are easier to extrapolate than tokens.", EAGLE, "Figure 10",
        features_or_tokens, (), part="a", needs="no card",
        detail="Cards of heads that read the one or the other.",
        regime="heads on Vicuna 7B, trained on far more text.",
    ),
    Claim(
        14, "Shifted tokens gain most.", EAGLE, "Figure 10", shifted_tokens, (),
        part="b", needs="no card",
        detail="Adding the token unshifted gains less than shifting it.",
        regime="heads on Vicuna 7B, trained on far more text.",
    ),
)  # fmt: skip

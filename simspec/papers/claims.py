"""Claims of papers: their effects on recordings, and a verdict for each pair at each price."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.special import ndtri

from simspec.numerics.stats import Estimate, difference, jackknife, stacked
from simspec.output.frames import DataFrame, frame
from simspec.papers.recorded import PRICES, Array, Price, Recorded, Recordings, excess, figure

BEFORE = {
    "1": "did not hold", "2": "did not hold; undecided", "3": "did not hold", "4a": "undecided",
    "4b": "undecided", "4c": "undecided", "5a": "held", "5b": "did not hold", "6": "held",
    "7a": "held", "7b": "undecided; held", "7c": "held", "8": "held", "9": "undecided",
    "10": "undecided; held", "11a": "undecided", "11b": "did not hold",
    "13a": "did not hold; held", "13b": "nothing counts", "13c": "did not hold; undecided",
    "14a": "did not hold", "14b": "held", "15a": "undecided", "15b": "undecided",
    "16": "undecided", "18a": "undecided; did not hold", "18c": "did not hold", "19": "undecided",
    "20": "undecided",
}  # fmt: skip
"""Verdicts of revision d1265ed (measured costs; flat ones where they differ), which asked each
recording of every target to have the effect."""
CHANGED = dict.fromkeys(("2", "3", "20"), "two predictors")
CHANGED |= dict.fromkeys(("4b", "4c", "6"), "existence, 1%")
CHANGED |= dict.fromkeys(("15a", "15b"), "both estimators")
CHANGED |= {
    "1": "two readings", "4a": "existence", "10": "siblings",
    "11a": "top layer", "13b": "beams recorded",
}  # fmt: skip
"""What changed since, beside that a verdict is of one pair at one price."""
HELD, NOT_HELD, UNDECIDED, NO_EVIDENCE = "held", "did not hold", "undecided", "no evidence"
ERROR, POWER = 0.05, 0.8
"""Error of each verdict, and the chance that as many prompts as are named give one."""


@dataclass(frozen=True, eq=False)
class Effect:
    """An effect in words, the recording or cards of it, the price ('' where none enters), the sums
    over prompts (float64[S] or [S, 1 + R] each) that it is a function `of`, and its unit.

    pair: the target and the text; effects of one pair are figures of the same prompts. most: of a
    time lost against the best choice, the function for the upper end of the interval: `of` chooses
    on the other prompts, which makes it too small, `most` on the same ones, which makes it too
    large. Ends are percentiles then, which stray outwards where choices are close; those that
    correct for this (bca) erred in up to 11% at the bound.
    """

    what: str
    on: str
    pair: str
    regime: str
    columns: tuple[Array, ...]
    of: Callable[[Array], Any] = excess
    unit: str = "share"
    seed: int = 0
    most: Callable[[Array], Any] | None = None

    def at(self, level: float) -> Estimate:
        """The effect with its interval at a level."""
        method = "percentile" if self.most else "bca"
        low = figure(*self.columns, of=self.of, seed=self.seed, level=level, method=method)
        if self.most is None:
            return low
        high = figure(*self.columns, of=self.most, seed=self.seed, level=level, method=method)
        return replace(low, high=high.high)

    @cached_property
    def interval(self) -> Estimate:
        """The effect with its 95% interval."""
        return self.at(1 - ERROR)


def slower(what: str, recorded: Recorded, theirs: Array, ours: Array) -> Effect:
    """The time of `theirs` over that of `ours`, less 1: how much slower they are."""
    return on_prompts(f"time of {what}, less 1", recorded, theirs, ours)


def on_prompts(
    what: str, recorded: Recorded, *columns: Array, of: Callable[[Array], Any] = excess, **more: Any
) -> Effect:
    """An effect on a recording at its price; more: a unit, another regime, or `most`."""
    given: dict[str, Any] = {"regime": recorded.regime} | more
    name, pair = recorded.name, recorded.pair
    return Effect(what, name, pair, columns=columns, of=of, seed=recorded.seed, **given)


def on_cards(
    what: str, recordings: Recordings, *names: str, of: Callable[[Array], Any] = difference
) -> list[Effect]:
    """An effect on the accepted lengths of ablations, on sampled outputs."""
    return [
        Effect(
            what, " / ".join(card.label for card in cards), "tiny/coupled", "",
            tuple(column for card in cards for column in card.sums[:, :2].T), of, "tokens",
        )
        for cards in recordings.cards(*names)
    ]  # fmt: skip


def longer(better: str, worse: str, recordings: Recordings) -> list[Effect]:
    """The accepted length of one ablation less that of another."""
    what = f"accepted length of {better} less that of {worse}"
    return on_cards(what, recordings, better, worse)


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper in our words, where it stands, the effects that it is about, and the
    range in which it puts them.

    some: whether the claim is that some recording has such an effect, not that all have it.
    """

    number: str
    sentence: str
    where: str
    effects: Callable[[Recordings], Sequence[Effect]]
    bounds: tuple[float, float] = (0.0, np.inf)
    some: bool = False

    def holds(self, interval: Estimate) -> bool:
        """Whether the interval lies within the bounds."""
        return self.bounds[0] < interval.low and interval.high < self.bounds[1]

    def fails(self, interval: Estimate) -> bool:
        """Whether the interval lies outside the bounds."""
        return interval.high < self.bounds[0] or self.bounds[1] < interval.low

    def says_nothing(self, effect: Effect) -> bool:
        """Whether the effect is exactly 0 without error, and 0 the bound: both sides did the same,
        such as drafting nothing; or has no figure."""
        found = effect.interval
        same = max(abs(found.value), abs(found.low), abs(found.high)) < 1e-12
        return not math.isfinite(found.value) or same and 0 in self.bounds


def each(
    function: Callable[[Recorded], Effect | Sequence[Effect] | None], *drafters: str,
    prices: Sequence[Price] = PRICES, K: int = 0,
) -> Callable[[Recordings], list[Effect]]:  # fmt: skip
    """The effects of a function of one recording, on the counted recordings at each price."""

    def effects(recordings: Recordings) -> list[Effect]:
        counted = recordings.counted(*drafters, K=K)
        found = [function(r.at(c)) for c in prices for r in counted if r.has_price(c)]
        lists = [[each] if isinstance(each, Effect) else each or [] for each in found]
        return [effect for effects in lists for effect in effects]

    return effects


@dataclass(frozen=True)
class Needed:
    """What decides in 4 of 5 draws, were the effect as estimated, see `needed`.

    prompts: 0: those recorded; prices: the standard error that they may leave in the effect, inf:
    theirs is small enough.
    """

    prompts: int
    prices: float = math.inf

    def __str__(self) -> str:
        prompts = f"{self.prompts:,}" if self.prompts < 1e5 else ">100,000"
        prices = "" if math.isinf(self.prices) else f"prices to {self.prices:.2%}"
        return ", ".join(filter(None, (prompts if self.prompts else "", prices)))


@dataclass(frozen=True)
class Verdict:
    """held, did not hold, undecided, or no evidence; of one pair at one price.

    pieces: the effects that were tested; left_out: recordings on which both sides did the same;
    needed: what would decide an undecided one.
    """

    word: str
    pieces: tuple[Effect, ...]
    left_out: tuple[str, ...]
    needed: Needed | None = None


def pooled(effects: Sequence[Effect]) -> Effect:
    """The mean of the effects of recordings of the same prompts, which are resampled together."""
    if len(effects) == 1:
        return effects[0]
    ends = np.cumsum([len(effect.columns) for effect in effects])[:-1]

    def mean(functions: Sequence[Callable[[Array], Any]], totals: Array) -> Any:
        parts = np.split(totals, ends, axis=-1)
        return np.mean([of(part) for of, part in zip(functions, parts)], axis=0)

    columns = tuple(column for effect in effects for column in effect.columns)
    on = ", ".join(effect.on for effect in effects)
    of = partial(mean, [effect.of for effect in effects])
    most = partial(mean, [effect.most or effect.of for effect in effects])
    most_of = most if any(effect.most for effect in effects) else None
    return replace(effects[0], on=on, columns=columns, of=of, most=most_of)


def needed(effect: Effect, bounds: tuple[float, float], level: float = 1 - ERROR) -> Needed:
    """What an interval needs to miss the nearest bound in 4 of 5 draws, were the effect as
    estimated: P (z e)^2 / (d^2 - (z s)^2) prompts, not fewer than P.

    d: the distance; e, s: standard errors over the P prompts (jackknife) and over replicates of the
    prices; z: the quantiles of the level and of `POWER`, added. Prices may take half of d^2: where
    they take more, s = d / (z sqrt 2) is needed, and the prompts are those beside it. Of an effect
    with `most` the end that is beyond the bound is asked, or the mean of both.
    """
    columns, of, most = stacked(*effect.columns), effect.of, effect.most
    at_prices = columns if columns.ndim == 2 else columns[..., 0]
    if most and of(at_prices.sum(axis=0)) < bounds[0]:
        beyond = most(at_prices.sum(axis=0)) < bounds[0]
        of = most if beyond else lambda totals: (effect.of(totals) + most(totals)) / 2
    value, error = jackknife(at_prices, of)
    of_prices = math.sqrt(max(jackknife(columns, of)[1] ** 2 - error**2, 0.0))
    distance = max(min(abs(value - bound) for bound in bounds), 1e-9)
    z = float(ndtri((1 + level) / 2) + ndtri(POWER))
    half = distance / (z * math.sqrt(2))
    left = (distance / z) ** 2 - min(of_prices, half) ** 2
    prompts = math.ceil(len(columns) * error**2 / left)
    if of_prices > half:
        return Needed(prompts if prompts > len(columns) else 0, half)
    return Needed(max(prompts, len(columns)))


def verdict_of(claim: Claim, effects: Sequence[Effect]) -> Verdict:
    """The verdict on effects of one pair at one price; it errs with probability ERROR at most.

    Recordings of a pair are no independent pieces. A claim on all of them is tested on their mean,
    for each alternative that it compares (`what`): it held where the 95% intervals of all
    alternatives lie within the bounds, and did not where that of one of m lies outside at 1 - .05 /
    m. A claim that some have such an effect is tested on each: it held where the interval of one of
    m lies within the bounds at 1 - .05 / m, and did not where all 95% intervals lie outside. A test
    of all at once needs no correction, whatever their dependence.
    """
    counted = [effect for effect in effects if not claim.says_nothing(effect)]
    left_out = tuple(effect.on for effect in effects if claim.says_nothing(effect))
    if not counted:
        return Verdict(NO_EVIDENCE, (), left_out)
    by_what: dict[Any, list[Effect]] = {}
    for effect in counted:
        key = (effect.what, effect.on) if claim.some else (effect.what, len(effect.columns[0]))
        by_what.setdefault(key, []).append(effect)
    pieces = tuple(map(pooled, by_what.values()))
    level = 1 - ERROR / len(pieces)
    one = claim.holds if claim.some else claim.fails  # what one piece decides, and what all do
    every = claim.fails if claim.some else claim.holds
    words = (HELD, NOT_HELD) if claim.some else (NOT_HELD, HELD)
    if any(one(piece.at(level)) for piece in pieces):
        return Verdict(words[0], pieces, left_out)
    if all(every(piece.interval) for piece in pieces):
        return Verdict(words[1], pieces, left_out)
    points = [replace(p.interval, low=p.interval.value, high=p.interval.value) for p in pieces]
    likely = [needed(p, claim.bounds, level) for p, at in zip(pieces, points) if one(at)]
    rest = [needed(p, claim.bounds) for p in pieces if not every(p.interval)]
    if likely:
        least = min(likely, key=lambda of: (-of.prices, of.prompts))
    else:
        least = Needed(max(of.prompts for of in rest), min(of.prices for of in rest))
    return Verdict(UNDECIDED, pieces, left_out, least)


def verdicts(claim: Claim, recordings: Recordings) -> dict[tuple[str, str], Verdict]:
    """{(pair, regime): the verdict}."""
    groups: dict[tuple[str, str], list[Effect]] = {}
    for effect in claim.effects(recordings):
        groups.setdefault((effect.pair, effect.regime), []).append(effect)
    return {key: verdict_of(claim, effects) for key, effects in groups.items()}


def evidence(claims: Sequence[Claim], recordings: Recordings) -> DataFrame:
    """Every effect of the claims: a row for each recording and price."""
    rows = [
        (claim.number, e.on, e.what, e.regime or "-", e.interval, e.unit)
        for claim in claims
        for e in claim.effects(recordings)
    ]
    return frame(
        rows, ("claim", "recording", "effect", "regime", "estimate", "unit"), names=4,
        title="Effects that the paper's claims are about", formats={"estimate": "+.3f"},
        notes=[f"{c.number}: {c.sentence}" for c in claims] + [EAGLE_NOTE],
    )  # fmt: skip


EAGLE_NOTE = (
    "smollm2's eagle is not the paper's head: it was trained unrolled on 3 steps, with equal "
    "weights of its losses, and drafts 8,192 of 49,152 tokens. coder's was trained with the "
    "paper's loss, for 15 minutes of two cores, and drafts 8,192 of 151,936."
)
VERDICT_NOTE = (
    "A verdict is of one pair of target and text: the recordings of a pair share their prompts, so "
    "their mean effect is tested, or, where the claim is that some differ, each with a corrected "
    "level. Its error is 5%. undecided: prompts that would decide it in 4 of 5 draws, were the "
    "effect as estimated; prices to N%: if measured until they leave this standard error in it. no "
    "evidence: both sides did the same. all: every pair with such recordings at that price."
)
PRICE_NOTE = (
    "H200: bundled steps of vLLM with an EAGLE-3 head, for drafters of one layer; measured: on the "
    "CPU, with the recording. H200 and flat prices charge nothing for reading features."
)


def verdict_table(claims: Sequence[Claim], recordings: Recordings) -> DataFrame:
    """Every verdict: a row for each claim, pair and price, with the effects that were tested."""
    rows = [
        {
            "claim": claim.number, "pair": pair, "price": regime or "-", "verdict": found.word,
            "needed": str(found.needed or "-"), "effect": piece and piece.interval,
            "of": piece.what if piece else "-", "recordings": piece.on if piece else "-",
            "left out": ", ".join(found.left_out) or "-",
        }
        for claim in claims
        for (pair, regime), found in verdicts(claim, recordings).items()
        for piece in found.pieces or (None,)
    ]  # fmt: skip
    sentences = [f"{claim.number}: {claim.sentence} {claim.where}" for claim in claims]
    notes = VERDICT_NOTE, PRICE_NOTE, EAGLE_NOTE, *sentences
    formats = {"effect": "+.3f"}
    return frame(rows, names=5, title="Verdicts on the claims", formats=formats, notes=notes)


def summary(claims: Sequence[Claim], recordings: Recordings) -> DataFrame:
    """The verdicts of each claim: before, and now by price, with the pairs of each."""
    rows = []
    for claim in claims:
        found: dict[str, dict[str, list[str]]] = {}
        for (pair, regime), verdict in verdicts(claim, recordings).items():
            shown = f"{pair} ({verdict.needed})" if verdict.needed else pair
            found.setdefault(verdict.word, {}).setdefault(regime, []).append(shown)
        key = claim.number.split()[0].rstrip(",")
        before, changed = BEFORE[key], CHANGED.get(key, "-")
        first = {"claim": claim.number, "sentence": claim.sentence, "before": before}
        for word in (HELD, NOT_HELD, UNDECIDED, NO_EVIDENCE):
            if pairs := found.get(word):
                others = {price for rest in found if rest != word for price in found[rest]}
                pairs = {p: names if p in others else _all_of(names) for p, names in pairs.items()}
                rows.append(first | {"now": word} | _by_price(pairs) | {"changed by": changed})
                first, changed = dict.fromkeys(first, ""), ""  # once a claim
    title = "The papers' claims: verdicts by price, and the pairs of each"
    return frame(rows, names=9, title=title, notes=(VERDICT_NOTE, PRICE_NOTE, EAGLE_NOTE))


def _all_of(names: list[str]) -> list[str]:
    """Pairs that all have one verdict, as their number where they are many and nothing is added."""
    return names if len(names) < 3 or any("(" in name for name in names) else [f"all {len(names)}"]


def _by_price(pairs: Mapping[str, Sequence[str]]) -> dict[str, str | None]:
    """{price: the pairs of a verdict}."""
    prices = ("measured", "H200", "flat, c = 0.05", "flat, c = 0.10")
    by_price = {price: ", ".join(pairs.get(price, ())) or None for price in prices}
    rest = [pair for regime, of in pairs.items() if regime not in prices for pair in of]
    return by_price | {"no price": ", ".join(rest) or None}

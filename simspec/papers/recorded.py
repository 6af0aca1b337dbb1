"""What the papers' tables and claims share: recordings with prices, cards, figures and effects."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.numerics.stats import Estimate, difference, estimate, quotient, stacked
from simspec.output.files import read_json
from simspec.output.frames import DataFrame, frame
from simspec.policies.fixed import fixed
from simspec.policy.policy import Policy
from simspec.replay.evaluation import halves
from simspec.replay.metrics import replicate_seconds
from simspec.replay.replay import replay
from simspec.trace.acceptance import repeated_ngrams
from simspec.trace.recordings import CHECKOUT, costs_of
from simspec.trace.trace import Rounds, Trace, load_trace
from simspec.tree.tree import MAX_SUBMITTED

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

FLAT = 0.10
"""c, a draft step over a plain step of the target, of the papers' regime: a verification pass costs
one plain step whatever it verifies, and all else is free."""
PRICES = (None, FLAT)
"""Costs as measured with each recording, then flat ones."""
MOST_REPEATED = 0.2
"""Share of repeated 8-grams from which outputs are repetitive: they inflate acceptance."""
TRAINED = ("eagle", "early_exit", "glide", "medusa", "hydra", "model", "self_skip")
"""Drafters that were trained, or searched for on text of the target."""
FILES = (
    "smollm2/greedy/{}.parquet", "smollm2/coupled/{}.parquet",
    "tiny-{}-coupled.parquet", "tiny-{}-greedy.parquet",
)  # fmt: skip
"""Recordings of a drafter below the folder of recordings."""
REJECTION = "smollm2/rejection/{}.parquet"
"""Recording of a drafter under the rejection rule."""
FURTHER = "papers/{}-{}-{}.parquet"
"""Further recordings of the embedded models: drafter, kind such as 'k10' or 'beam4', rule."""
CARDS = ("ablations", "ablations-seed1")
"""Folders of the ablations' cards, by training seed."""
LAYERS, EXIT_LAYERS = 10, 2
"""Layers of the embedded target, and those of its measured early exit: the first and a new one."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recording and its costs at one price; replays are kept, so further prices cost little.

    target is 'smollm2' or 'tiny'; seed and draws are of policies that draw; regime names the price;
    exit: (first layers, new layers) of an early exit that is priced by the measured one.
    """

    name: str
    drafter: str
    target: str
    trace: Trace
    cost: CostModel
    seed: int = 0
    draws: int = 4
    regime: str = "measured"
    exit: tuple[int, int] | None = None
    _kept: dict[Any, Rounds] = field(default_factory=dict, repr=False)

    @property
    def tokens(self) -> Array:
        """float64[S]: output tokens of each prompt."""
        return np.diff(self.trace.offset).astype(np.float64)

    @cached_property
    def repetitive(self) -> bool:
        outputs = np.split(self.trace.token, self.trace.offset[1:-1])
        return repeated_ngrams(outputs) >= MOST_REPEATED

    def has(self, feature: str) -> bool:
        """Whether a feature was recorded."""
        return feature in dict(self.trace.meta.features)

    def at(self, c: float | None) -> "Recorded":
        """The recording at its measured costs (None), or at flat ones of ratio c.

        Trees submit up to 32 tokens, so costs are extrapolated to them.
        """
        if c is None:
            cost = (self.cost.extend(2) if self.cost.K == 1 else self.cost).widen(MAX_SUBMITTED)
        else:
            nodes = max(MAX_SUBMITTED, self.cost.nodes)
            cost = CostModel.from_ratio(c, max(self.cost.K, 2), nodes)
        cost = cost if self.exit is None else exit_cost(cost, *self.exit)
        regime = self.regime if c is None else f"flat, c = {c:.2f}"
        return replace(self, cost=cost, regime=regime, exit=None)

    def rounds(self, policy: Policy, seed: int | None = None) -> Rounds:
        """The rounds of a policy that plans without costs."""
        seed = self.seed if seed is None else seed
        key = policy.name, policy.params, seed if policy.random else 0
        if key not in self._kept:
            self._kept[key] = replay(self.trace, policy, seed, self.cost)
        return self._kept[key]

    def all_rounds(self, policy: Policy) -> list[Rounds]:
        """The rounds of all draws of a policy; one draw where it does not draw."""
        seeds = range(self.seed, self.seed + (self.draws if policy.random else 1))
        return [self.rounds(policy, seed) for seed in seeds]

    def seconds(self, policy: Policy, charged: bool = True) -> Array:
        """float64[S, 1 + R]: modelled seconds of each prompt at the costs and at their replicates.

        Means over the draws of a random policy; charged False: reading features is free.
        """
        cost = self.cost.reading(policy.reads) if charged else self.cost
        draws = self.all_rounds(policy)
        point = np.mean([by_prompt(cost.seconds(r), r) for r in draws], axis=0)
        return np.column_stack((point, np.mean([replicate_seconds(r, cost) for r in draws], 0)))

    def fixed_seconds(self, longest: int = 255, shortest: int = 1) -> Array:
        """float64[L, S, 1 + R]: seconds of the fixed lengths from `shortest` on, at most K."""
        lengths = range(shortest, min(longest, self.trace.K) + 1)
        return np.stack([self.seconds(fixed(k)) for k in lengths])


def by_prompt(values: Array, rounds: Rounds) -> Array:
    """float64[S]: sums over the rounds of each sequence."""
    return np.asarray(np.add.reduceat(values, rounds.offset[:-1]), np.float64)


def crossed(seconds: Array, trace: Trace) -> tuple[Array, NDArray[np.int64]]:
    """(seconds [S, ...], setting [S]) of settings [L, S, ...], chosen on the other half of the
    prompts at the first of their prices."""
    setting = np.empty(seconds.shape[1], np.int64)
    first = seconds if seconds.ndim == 2 else seconds[..., 0]
    for fit, rest in halves(trace):
        setting[rest] = first[:, fit].sum(axis=1).argmin()
    return seconds[setting, np.arange(len(setting))], setting


@dataclass(frozen=True, eq=False)
class Card:
    """A trained drafter's card; its recording, if any, is the file of that name and .parquet.

    sums float64[S, 3]: accepted tokens, drafts and tested tokens of each sequence of sampled
    outputs, drafts of 5 from every position.
    """

    path: Path
    data: Mapping[str, Any]
    sums: Array

    @property
    def label(self) -> str:
        """The file's name without its ending, and the training seed unless it is 0."""
        seed = self.data["asked"]["plan"]["seed"]
        return f"{self.path.stem} (seed {seed})" if seed else self.path.stem

    @property
    def held_out(self) -> Estimate:
        """Accepted length on held-out text."""
        found = self.data["evaluation"]["trained"]["accepted_length"]
        return Estimate(found["value"], found["low"], found["high"], 0.95, found["texts"])


def read_card(path: Path) -> Card:
    """The card in a file; ValueError, one line with the path, for one that cannot be read."""

    def read(data: Any) -> Card:
        try:
            kept = data["evaluation"]["recorded"]["by_sequence"]
            columns = [kept[key] for key in ("accepted", "drafts", "tested")]
            return Card(path, data, np.array(columns, np.float64).T)
        except (KeyError, TypeError) as error:
            raise ValueError(f"lacks {error}, expected what `simspec train` writes") from None

    return read_json(path, read, "drafter's card")


@dataclass(frozen=True)
class Recordings:
    """Recordings and cards, read when they are asked for.

    folder is laid out as traces/ of a checkout, None: `given` alone; seed and draws as of Recorded.
    """

    folder: Path | None = CHECKOUT
    given: tuple[Recorded, ...] = ()
    seed: int = 0
    draws: int = 4
    _kept: dict[Path, Recorded] = field(default_factory=dict, repr=False)

    def of(self, *drafters: str) -> list[Recorded]:
        """Recordings of these drafters, the real model's before the embedded ones'."""
        found = []
        for drafter in drafters:
            found += [self._read(drafter, path) for path in self._paths(drafter, FILES)]
            found += [recorded for recorded in self.given if recorded.drafter == drafter]
        return found

    def counted(self, *drafters: str, K: int = 0) -> list[Recorded]:
        """`deep` of these drafters, without those whose outputs are repetitive."""
        return [r for drafter in drafters for r in self.deep(drafter, K) if not r.repetitive]

    def sampled(self, *drafters: str) -> list[Recorded]:
        """The real model's recordings under the rejection rule."""
        return [self._read(d, path) for d in drafters for path in self._paths(d, (REJECTION,))]

    def further(self, drafter: str, kind: str) -> list[Recorded]:
        """Recordings of a kind, as 'k10' or 'beam4', that add to the embedded models' of each rule.

        Costs are those measured with the latter, continued to their K by `CostModel.extend`.
        """
        found = []
        for beside in self.of(drafter):
            path = FURTHER.format(drafter, kind, beside.trace.meta.rule)
            if beside.target == "tiny" and self.folder and (self.folder / path).is_file():
                trace, name = load_trace(self.folder / path), path.removesuffix(".parquet")
                cost = beside.cost.extend(max(beside.cost.K, trace.K))
                found.append(replace(beside, name=name, trace=trace, cost=cost, _kept={}))
        return found

    def deep(self, drafter: str, K: int) -> list[Recorded]:
        """The recordings `of` a drafter; a further one of K replaces one that is less deep."""
        deeper = {recorded.trace.meta.rule: recorded for recorded in self.further(drafter, f"k{K}")}
        return [
            deeper.get(r.trace.meta.rule, r) if r.target == "tiny" and r.trace.K < K else r
            for r in self.of(drafter)
        ]

    def card(self, name: str, seed: int = 0) -> Card | None:
        """The card of an ablation."""
        path = self.folder / CARDS[seed] / f"{name}.json" if self.folder else None
        return read_card(path) if path and path.is_file() else None

    def cards(self, *names: str) -> list[tuple[Card, ...]]:
        """The cards of these ablations, a tuple for each training seed that has all of them."""
        by_seed = [[self.card(name, seed) for name in names] for seed in range(len(CARDS))]
        found = [tuple(card for card in cards if card is not None) for cards in by_seed]
        return [cards for cards in found if len(cards) == len(names)]

    def exit(self, card: Card | None) -> Recorded | None:
        """The recording next to an early exit's card, with the costs of the measured exit."""
        measured = [r for r in self.of("early_exit") if r.target == "tiny"]
        path = card.path.with_suffix(".parquet") if card else None
        if card is None or path is None or not measured or not path.is_file():
            return None
        form = tuple(card.data["asked"]["settings"][name] for name in ("depth", "layers"))
        return replace(measured[0], name=card.label, trace=load_trace(path), exit=form, _kept={})

    def _paths(self, drafter: str, files: Iterable[str]) -> list[Path]:
        paths = [self.folder / file.format(drafter) for file in files] if self.folder else []
        return [path for path in paths if path.is_file()]

    def _read(self, drafter: str, path: Path) -> Recorded:
        if path not in self._kept:
            assert self.folder is not None
            name = str(path.relative_to(self.folder).with_suffix(""))
            target = "smollm2" if name.startswith("smollm2") else "tiny"
            trace, cost = load_trace(path), costs_of({name: path})[name]
            if not isinstance(cost, CostModel):  # claims of such recordings count tokens
                cost = CostModel.from_ratio(FLAT, trace.K)
            of = Recorded(name, drafter, target, trace, cost, self.seed, self.draws)
            self._kept[path] = of
        return self._kept[path]


def layer_and_head(cost: CostModel) -> tuple[float, float]:
    """(seconds of a layer, seconds of the rest of a step, its head) of the measured early exit.

    A plain step runs LAYERS layers and a head, a draft step EXIT_LAYERS and a head. Where that
    leaves less than nothing for a head, all of a draft step is its layers.
    """
    step = float(cost.draft[1])
    layer = min((cost.baseline - step) / (LAYERS - EXIT_LAYERS), step / EXIT_LAYERS)
    return layer, step - EXIT_LAYERS * layer


def exit_cost(cost: CostModel, depth: int, new: int) -> CostModel:
    """The measured early exit's costs, scaled to one of `depth` first layers and `new` ones.

    A draft step is scaled by its layers and head; further rows of a verification skip the first
    `depth` layers, which drafting has run.
    """
    layer, head = layer_and_head(cost)
    factor = (head + (depth + new) * layer) / float(cost.draft[1])
    skipped = (depth - 1) / (LAYERS - 1)
    verify = cost.verify - skipped * np.maximum(cost.verify - cost.verify[0], 0.0)
    return replace(cost, draft=factor * cost.draft, verify=verify, precision=None)


def tasks_of(recorded: Recorded, names: Sequence[str] = ()) -> Mask:
    """bool[S]: the prompts of these tasks; () for all."""
    tasks = recorded.trace.meta.tasks
    if not names or not tasks:
        return np.full(recorded.trace.sequences, not names)
    chosen: Mask = np.isin(np.array(tasks), list(names))
    return chosen


def figure(*columns: Array, of: Callable[[Array], Any] = quotient, seed: int = 0) -> Estimate:
    """A function of sums over prompts, with its 95% interval over prompts, and prices where columns
    hold replicates of them."""
    return estimate(stacked(*columns), of, level=0.95, resamples=2000, seed=seed)


def speedup(recorded: Recorded, seconds: Array, chosen: Mask | None = None) -> Estimate:
    """Speedup of seconds [S, 1 + R] over plain decoding, on some prompts."""
    plain = recorded.tokens * recorded.cost.baseline
    some = slice(None) if chosen is None else chosen
    return figure(plain[some], seconds[some], seed=recorded.seed)


def ablations(
    title: str, recordings: Recordings, names: Mapping[str, Mapping[str, Any]], *notes: str
) -> DataFrame:
    """Accepted lengths of ablations, {name: further columns}, and the change from the first."""
    rows, cards = [], {name: recordings.card(name) for name in names}
    base = next(iter(cards.values()), None)
    for name, card in cards.items():
        if card and base:
            sums = *card.sums[:, :2].T, *base.sums[:, :2].T
            shares = card.data["evaluation"]["recorded"]["by_depth"]
            rows.append(
                {
                    "ablation": name, "held-out text": card.held_out,
                    "sampled outputs": figure(*sums[:2]),
                    "change": None if card is base else figure(*sums, of=difference),
                    **{f"{n}-alpha": share for n, share in enumerate(shares)}, **names[name],
                }
            )  # fmt: skip
    notes = (
        "Accepted length of drafts of 5 from every position; change and n-alpha are of sampled "
        "outputs. Held-out text is a small target's greedy output, which repeats itself.",
        *notes, learned(recordings, *names),
    )  # fmt: skip
    formats = {"held-out text": ".3f", "sampled outputs": ".3f", "change": "+.3f"}
    return frame(
        rows, title=title, formats=formats | {f"{n}-alpha": ".2f" for n in range(5)}, notes=notes
    )


def learned(recordings: Recordings, *names: str) -> str:
    """A sentence on the tokens that these ablations learned; '' without their cards."""
    cards = [card for name in names if (card := recordings.card(name))]
    counts = " or ".join(dict.fromkeys(f"{card.data['tokens']:,}" for card in cards))
    return f"Each ablation learned {counts} tokens." if counts else ""


def longer(better: str, worse: str, recordings: Recordings) -> list["Effect"]:
    """The accepted length of one ablation less that of another, on sampled outputs."""
    return [
        Effect(
            "accepted length of the first less that of the second",
            f"{one.label} / {other.label}", "",
            figure(*one.sums[:, :2].T, *other.sums[:, :2].T, of=difference), "tokens",
        )
        for one, other in recordings.cards(better, worse)
    ]  # fmt: skip


def excess(totals: Array) -> Array:
    """a / b - 1 of totals [..., 2]: how much slower a is than b, in shares of b."""
    slower: Array = totals[..., 0] / totals[..., 1] - 1
    return slower


@dataclass(frozen=True)
class Effect:
    """What a claim's function returns: an effect in words, the recording or cards of it, the price
    ('' where none enters), its Estimate at 95%, and the unit of that."""

    what: str
    on: str
    regime: str
    interval: Estimate
    unit: str = "share"


def slower(what: str, recorded: Recorded, theirs: Array, ours: Array) -> Effect:
    """The time of `theirs` over that of `ours`, less 1: how much slower they are."""
    interval = figure(theirs, ours, of=excess, seed=recorded.seed)
    return Effect(f"time of {what}, less 1", recorded.name, recorded.regime, interval)


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper in our words, where it stands, the effects that it is about, and the
    range in which it puts them."""

    number: str
    sentence: str
    where: str
    effects: Callable[[Recordings], Sequence[Effect]]
    bounds: tuple[float, float] = (0.0, np.inf)

    def holds(self, interval: Estimate) -> bool:
        """Whether the interval lies within the bounds."""
        return self.bounds[0] < interval.low and interval.high < self.bounds[1]


def each(
    function: Callable[[Recorded], Effect | Sequence[Effect] | None], *drafters: str,
    prices: Sequence[float | None] = PRICES, K: int = 0,
) -> Callable[[Recordings], list[Effect]]:  # fmt: skip
    """The effects of a function of one recording, on the counted recordings at each price."""

    def effects(recordings: Recordings) -> list[Effect]:
        counted = recordings.counted(*drafters, K=K)
        found = [function(recorded.at(c)) for c in prices for recorded in counted]
        lists = [[each] if isinstance(each, Effect) else each or [] for each in found]
        return [effect for effects in lists for effect in effects]

    return effects


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
        notes=[f"{c.number}: {c.sentence}" for c in claims],
    )  # fmt: skip


def summary(claims: Sequence[Claim], recordings: Recordings) -> DataFrame:
    """A row for each claim: in each regime the median effect, and how many intervals hold."""
    rows = []
    for claim in claims:
        row: dict[str, Any] = {
            "claim": claim.number, "sentence": claim.sentence, "where": claim.where,
            "claimed": "{:g} to {:g}".format(*claim.bounds).replace("to inf", "or more"),
            "measured": None, f"flat, c = {FLAT:.2f}": None, "no price": None,
        }  # fmt: skip
        effects = sorted(claim.effects(recordings), key=lambda effect: effect.interval.value)
        for regime in dict.fromkeys(effect.regime for effect in effects):
            found = [effect.interval for effect in effects if effect.regime == regime]
            median = found[(len(found) - 1) // 2].text("+.3f")
            holds = f"{sum(map(claim.holds, found))} of {len(found)}"
            row[regime if regime in row else "no price"] = f"{median}, holds on {holds}"
        rows.append(row)
    note = "The median recording's effect; holds: its 95% interval lies where the claim puts it."
    return frame(rows, names=7, title="The papers' claims", notes=(note,))

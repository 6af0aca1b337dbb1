"""What the papers' tables and claims share: recordings with prices, cards and figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.cost.table import bundled_costs, load_cost
from simspec.numerics.stats import Estimate, difference, estimate, quotient, stacked
from simspec.output.files import read_json
from simspec.output.frames import DataFrame, frame
from simspec.policies.fixed import fixed
from simspec.policy.policy import Policy
from simspec.replay.evaluation import halves
from simspec.replay.metrics import by_prompt, replicate_seconds
from simspec.replay.replay import replay
from simspec.trace.acceptance import repeated_ngrams
from simspec.trace.recordings import CHECKOUT, costs_of
from simspec.trace.trace import Rounds, Trace, load_trace
from simspec.tree.tree import MAX_SUBMITTED

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

Price = float | str | None
FLAT = 0.10
"""c, a draft step over a plain step of the target, of the papers' regime: a verification pass costs
one plain step whatever it verifies, and all else is free."""
FLATS = (None, 0.05, FLAT)
H200 = "h200-vllm-0.26"
"""Bundled steps of vLLM with an EAGLE-3 head of one layer on an H200. A step holds drafting and
verification, so a tree's node is priced as a drafted token, which is more than it costs."""
ONE_LAYER = ("eagle", "early_exit", "glide", "medusa", "hydra")
"""Drafters that run about one layer a token, as the head of H200."""
PRICES: tuple[Price, ...] = (None, H200, 0.05, FLAT)
"""Costs as measured with each recording, those of an H200, then flat ones."""
MOST_REPEATED = 0.2
"""Share of repeated 8-grams from which outputs are repetitive: they inflate acceptance."""
TRAINED = (*ONE_LAYER, "model", "self_skip")
"""Drafters that were trained, or searched for on text of the target."""
FILES = (
    "*/greedy/{}.parquet", "*/coupled/{}.parquet",
    "tiny-{}-coupled.parquet", "tiny-{}-greedy.parquet",
)  # fmt: skip
"""Recordings of a drafter below the folder of recordings; a real target's have a folder of its name
and the rule: SmolLM2's, and any further pair's."""
REJECTION = "*/rejection/{}.parquet"
"""Recording of a drafter under the rejection rule."""
FURTHER = "papers/{}-k{}-{}.parquet"
"""Deeper recordings of the embedded models: drafter, K, rule."""
BEAMS = "{}/beams/{}.parquet"
"""Beam searches along a greedy recording's outputs: target, drafter."""
CARDS = ("ablations", "ablations-seed1")
"""Folders of the ablations' cards, by training seed."""
LAYERS, EXIT_LAYERS = 10, 2
"""Layers of the embedded target, and those of its measured early exit: the first and a new one."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recording and its costs at one price; replays are kept, so further prices cost little.

    target is 'tiny' or the folder, such as 'smollm2'; seed and draws are of policies that draw;
    regime names the price, measured is whether `cost` was; exit: (first layers, new layers) of an
    early exit that is priced by the measured one.
    """

    name: str
    drafter: str
    target: str
    trace: Trace
    cost: CostModel
    seed: int = 0
    draws: int = 4
    regime: str = "measured"
    measured: bool = True
    exit: tuple[int, int] | None = None
    _kept: dict[Any, Rounds] = field(default_factory=dict, repr=False)

    @property
    def tokens(self) -> Array:
        """float64[S]: output tokens of each prompt."""
        return np.diff(self.trace.offset).astype(np.float64)

    @property
    def pair(self) -> str:
        """The target and the rule of its text: recordings of one pair share their outputs."""
        return f"{self.target}/{self.trace.meta.rule}"

    @cached_property
    def repetitive(self) -> bool:
        outputs = np.split(self.trace.token, self.trace.offset[1:-1])
        return repeated_ngrams(outputs) >= MOST_REPEATED

    def has(self, feature: str) -> bool:
        """Whether a feature was recorded."""
        return feature in dict(self.trace.meta.features)

    def has_price(self, price: Price) -> bool:
        """Whether `at` this price says something of this drafter: measured costs may not be there,
        and the H200's are of a drafter of one layer."""
        one_layer = self.drafter in ONE_LAYER and self.exit is None
        return self.measured if price is None else price != H200 or one_layer

    def at(self, price: Price) -> "Recorded":
        """The recording at its measured costs (None), at the H200's, or at flat ones of ratio c.

        Trees submit up to 32 tokens, so costs are extrapolated to them.
        """
        if price is None:
            cost = (self.cost.extend(2) if self.cost.K == 1 else self.cost).widen(MAX_SUBMITTED)
        elif isinstance(price, str):
            cost = load_cost(bundled_costs()[price]).at(1)
            cost = cost.extend(max(cost.K, self.trace.K)).widen(MAX_SUBMITTED)
        else:
            nodes = max(MAX_SUBMITTED, self.cost.nodes)
            cost = CostModel.from_ratio(price, max(self.cost.K, 2), nodes)
        cost = cost if self.exit is None else exit_cost(cost, *self.exit)
        regime = self.regime if price is None else "H200"
        if isinstance(price, float):
            regime = f"flat, c = {price:.2f}"
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
        replicates = [replicate_seconds(rounds, cost) for rounds in self.all_rounds(policy)]
        return np.column_stack((self.point(policy, charged), np.mean(replicates, axis=0)))

    def point(self, policy: Policy, charged: bool = True) -> Array:
        """float64[S]: the first column of `seconds`, at the costs themselves."""
        cost = self.cost.reading(policy.reads) if charged else self.cost
        draws = self.all_rounds(policy)
        return np.mean([by_prompt(cost.seconds(r), r) for r in draws], axis=0)

    def fixed_seconds(self, longest: int = 255, shortest: int = 1) -> Array:
        """float64[L, S, 1 + R]: seconds of the fixed lengths from `shortest` on, at most K."""
        lengths = range(shortest, min(longest, self.trace.K) + 1)
        return np.stack([self.seconds(fixed(k)) for k in lengths])


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
            found += [self._read(drafter, path) for path in self._paths(drafter, *FILES)]
            found += [recorded for recorded in self.given if recorded.drafter == drafter]
        return found

    def counted(self, *drafters: str, K: int = 0) -> list[Recorded]:
        """`deep` of these drafters, without those whose outputs are repetitive."""
        return [r for drafter in drafters for r in self.deep(drafter, K) if not r.repetitive]

    def searched(self, *drafters: str) -> list[Recorded]:
        """Those `counted` of these drafters that hold a beam search, or for which one is recorded
        along their outputs, which their costs price."""
        found = []
        for recorded in self.counted(*drafters):
            path = BEAMS.format(recorded.target, recorded.drafter)
            if recorded.trace.beam is not None:
                found.append(recorded)
            elif self.folder and (self.folder / path).is_file():
                trace, name = load_trace(self.folder / path), path.removesuffix(".parquet")
                if trace.meta.rule == recorded.trace.meta.rule:
                    found.append(replace(recorded, name=name, trace=trace, _kept={}))
        return found

    def sampled(self, *drafters: str) -> list[Recorded]:
        """The real model's recordings under the rejection rule."""
        return [self._read(d, path) for d in drafters for path in self._paths(d, REJECTION)]

    def deep(self, drafter: str, K: int) -> list[Recorded]:
        """The recordings `of` a drafter; of an embedded model that is less deep a further one of K,
        along the same outputs, with the costs of the shorter, continued by `CostModel.extend`."""
        return [self._deeper(recorded, K) for recorded in self.of(drafter)]

    def _deeper(self, recorded: Recorded, K: int) -> Recorded:
        path = FURTHER.format(recorded.drafter, K, recorded.trace.meta.rule)
        there = self.folder and (self.folder / path).is_file()
        if recorded.target != "tiny" or recorded.trace.K >= K or not self.folder or not there:
            return recorded
        trace, name = load_trace(self.folder / path), path.removesuffix(".parquet")
        cost = recorded.cost.extend(max(recorded.cost.K, trace.K))
        return replace(recorded, name=name, trace=trace, cost=cost, _kept={})

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

    def _paths(self, drafter: str, *files: str) -> list[Path]:
        folder = self.folder
        return [p for f in files for p in sorted(folder.glob(f.format(drafter)))] if folder else []

    def _read(self, drafter: str, path: Path) -> Recorded:
        if path not in self._kept:
            assert self.folder is not None
            name = str(path.relative_to(self.folder).with_suffix(""))
            target = name.partition("/")[0] if "/" in name else "tiny"
            trace, cost = load_trace(path), costs_of({name: path})[name]
            measured = isinstance(cost, CostModel)
            cost = cost if measured else CostModel.from_ratio(FLAT, trace.K)
            cost = cost.extend(trace.K) if cost.K < trace.K else cost
            of = Recorded(name, drafter, target, trace, cost, self.seed, self.draws)
            self._kept[path] = replace(of, measured=measured)
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


def figure(
    *columns: Array, of: Callable[[Array], Any] = quotient, seed: int = 0, level: float = 0.95,
    method: str = "bca",
) -> Estimate:  # fmt: skip
    """A function of sums over prompts, with its interval over prompts, and prices where columns
    hold replicates of them; 50 resamples lie beyond each of its ends."""
    resamples = min(round(100 / (1 - level)), 16_000)
    options: dict[str, Any] = {"level": level, "resamples": resamples, "seed": seed}
    return estimate(stacked(*columns), of, method=method, **options)


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


def excess(totals: Array) -> Array:
    """a / b - 1 of totals [..., 2]: how much slower a is than b, in shares of b."""
    slower: Array = totals[..., 0] / totals[..., 1] - 1
    return slower

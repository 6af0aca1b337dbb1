"""Recorded: a recording with its costs at a Price, and the seconds of a policy on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.evaluate.evaluation import halves
from simspec.papers.evidence import Array, EffectSource
from simspec.policies.fixed import fixed
from simspec.policy.policy import Policy
from simspec.replay.metrics import replicate_seconds
from simspec.replay.replay import replay
from simspec.trace.recordings import costs_of
from simspec.trace.rounds import Rounds
from simspec.trace.trace import Trace, load_trace
from simspec.tree.policy import MAX_SUBMITTED


@dataclass(frozen=True)
class Price:
    """How seconds are counted.

    | field | meaning |
    | --- | --- |
    | name | label in tables |
    | ratio | c, a draft step over a plain step of the target; None: all costs as measured |
    | flat | a verification pass costs a plain step, whatever it verifies |
    """

    name: str
    ratio: float | None = None
    flat: bool = False

    def of(self, cost: CostModel) -> CostModel:
        """The costs at this price, for up to 32 submitted tokens.

        At a ratio overhead, catch-up and features are free, as in the papers' formulas. A further
        row of a drafter's pass is free where verification is flat, else c times the mean price of
        a further row of the target's. Costs of one draft length are continued by `extend`.
        """
        if cost.K == 1:
            cost = cost.extend(2)
        cost = cost.widen(MAX_SUBMITTED)
        if self.ratio is None:
            return cost
        plain = cost.baseline
        row = max(float(cost.verify[-1] - cost.verify[0]) / cost.nodes, 0.0)
        priced = replace(
            cost,
            draft=self.ratio * plain * np.arange(cost.K + 1),
            verify=np.full(cost.nodes + 1, plain) if self.flat else cost.verify,
            catch_up=np.zeros(1),
            overhead=0.0,
            feature=0.0,
            predictor=None,
            node=0.0 if self.flat else self.ratio * row,
            kv_verify=0.0 if self.flat else cost.kv_verify,
            kv_draft=0.0,
            step=0.0 if self.flat else cost.step,
            precision=None,
            name=self.name,
        )
        return priced.derived(self.of, cost)


MEASURED = Price("measured")
RATIOS = (0.05, 0.10, 0.15)
PRICES = (
    MEASURED,
    *(Price(f"c={c:.2f} flat", c, True) for c in RATIOS),
    *(Price(f"c={c:.2f} rows", c, False) for c in RATIOS),
)
"""Measured; each c with verification at the price of a plain step; each c with measured rows."""


MOST_REPEATED = 0.2
"""Share of repeated 8-grams from which a recording is shown, but does not count."""
REPETITIVE = "repetitive"
TRAINED = ("eagle", "early_exit", "glide", "medusa", "hydra", "model", "self_skip")
"""Drafters that were trained, or searched for on text of the target."""

FILES = (
    "smollm2/greedy/{}.parquet", "smollm2/coupled/{}.parquet",
    "tiny-{}-coupled.parquet", "tiny-{}-greedy.parquet",
)  # fmt: skip
"""Paths of a drafter's recordings, below the folder of recordings."""
REJECTION = "smollm2/rejection/{}.parquet"
"""Path of a drafter's recording under the rejection rule."""
FURTHER = "papers/{}-{}-{}.parquet"
"""Path of further ones of the embedded models, for the papers' tables: drafter, kind, rule."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recording and its costs; replays are kept, so that further prices cost little.

    | field | meaning |
    | --- | --- |
    | name, drafter, target | what was recorded, and of which family of models |
    | trace, cost | the recording and the costs measured with it |
    | excluded | why it does not count in verdicts, such as REPETITIVE; '': it counts |
    """

    name: str
    drafter: str
    target: str
    trace: Trace
    cost: CostModel
    excluded: str = ""
    _kept: dict[Any, Rounds] = field(default_factory=dict, repr=False)

    @property
    def rule(self) -> str:
        return self.trace.meta.rule

    @property
    def source(self) -> EffectSource:
        return EffectSource(self.name, self.trace.meta.device, self.excluded)

    @property
    def tokens(self) -> Array:
        """float64[S]: output tokens of each prompt."""
        return np.diff(self.trace.offset).astype(np.float64)

    def rounds(self, policy: Policy, seed: int = 0) -> Rounds:
        """The rounds of a policy that plans without costs."""
        key = policy.name, policy.params, seed if policy.random else 0
        if key not in self._kept:
            self._kept[key] = replay(self.trace, policy, seed, self.cost)
        return self._kept[key]

    def seconds(self, policy: Policy, price: Price, seed: int = 0, draws: int = 1) -> Array:
        """float64[S]: modelled seconds of each prompt, averaged over draws of a random policy."""
        cost = price.of(self.cost).reading(policy.reads)
        seeds = range(seed, seed + (draws if policy.random else 1))
        of_draws = [self.rounds(policy, i) for i in seeds]
        return np.mean([by_prompt(cost.seconds(rounds), rounds) for rounds in of_draws], axis=0)

    def priced_seconds(self, policy: Policy, price: Price, seed: int = 0, draws: int = 1) -> Array:
        """float64[S, 1 + R]: `seconds`, then those at the R replicates of the costs."""
        cost = price.of(self.cost).reading(policy.reads)
        seeds = range(seed, seed + (draws if policy.random else 1))
        of_draws = [replicate_seconds(self.rounds(policy, i), cost) for i in seeds]
        points = self.seconds(policy, price, seed, draws)
        return np.column_stack((points, np.mean(of_draws, axis=0)))

    def fixed_seconds(self, price: Price, longest: int = 255, shortest: int = 1) -> Array:
        """float64[L, S]: seconds of the fixed lengths from `shortest` to `longest`, at most K."""
        cost = price.of(self.cost)
        lengths = range(shortest, min(longest, self.trace.K) + 1)
        of_length = [self.rounds(fixed(k)) for k in lengths]
        return np.stack([by_prompt(cost.seconds(rounds), rounds) for rounds in of_length])

    def best_fixed(
        self, price: Price, longest: int = 255, shortest: int = 1
    ) -> tuple[Array, float]:
        """(float64[S], mean K) of the best of these fixed lengths, see `crossed`."""
        seconds, choice = crossed(self.fixed_seconds(price, longest, shortest), self.trace)
        return seconds, float(choice.mean()) + shortest


def by_prompt(values: Array, rounds: Rounds) -> Array:
    """Sums over the rounds of each sequence, float64[S]."""
    sums: Array = np.add.reduceat(values, rounds.offset[:-1])
    return sums


def crossed(seconds: Array, trace: Trace) -> tuple[Array, NDArray[np.int64]]:
    """(seconds [S], setting [S]) of settings [L, S], chosen on the other half of the prompts."""
    chosen, setting = np.empty(seconds.shape[1]), np.empty(seconds.shape[1], np.int64)
    for fit, rest in halves(trace):
        best = int(seconds[:, fit].sum(axis=1).argmin())
        chosen[rest], setting[rest] = seconds[best, rest], best
    return chosen, setting


@dataclass(frozen=True)
class Recordings:
    """Recordings by drafter, read when they are asked for.

    | field | meaning |
    | --- | --- |
    | folder | laid out as traces/ of a checkout; None: `given` alone |
    | prompts | of each recording, evenly spread; None: all |
    | given | further ones |
    """

    folder: Path | None
    prompts: int | None = None
    given: tuple[Recorded, ...] = ()
    _kept: dict[str, tuple[Recorded, ...]] = field(default_factory=dict, repr=False)

    def of(self, *drafters: str) -> list[Recorded]:
        """Recordings of these drafters, the real model's before the embedded ones'."""
        return [recorded for drafter in drafters for recorded in self._of(drafter)]

    def sampled(self, *drafters: str) -> list[Recorded]:
        """The real model's recordings of these drafters under the rejection rule."""
        if self.folder is None:
            return []
        files = {drafter: self.folder / REJECTION.format(drafter) for drafter in drafters}
        return [self._read(drafter, path) for drafter, path in files.items() if path.is_file()]

    @property
    def costs(self) -> dict[str, CostModel]:
        """{recording: its costs} of those read so far."""
        return {recorded.name: recorded.cost for of in self._kept.values() for recorded in of}

    def further(self, drafter: str, kind: str) -> list[Recorded]:
        """Recordings of a kind, as 'k10' or 'beam4', that add to the embedded models' of each rule.

        Costs are those measured with the latter, `CostModel.extend`ed to their K.
        """
        found = []
        for beside in self.of(drafter):
            path = Path(FURTHER.format(drafter, kind, beside.rule))
            if self.folder is None or beside.target != "tiny" or not (self.folder / path).is_file():
                continue
            trace, cost = self._trace(self.folder / path), beside.cost
            found.append(
                replace(
                    beside, name=str(path.with_suffix("")), trace=trace, _kept={},
                    cost=cost.extend(max(cost.K, trace.K)),
                )
            )  # fmt: skip
        return found

    def deep(self, drafter: str, K: int) -> list[Recorded]:
        """The recordings `of` a drafter; a further one of K replaces one that is less deep."""
        deeper = {recorded.rule: recorded for recorded in self.further(drafter, f"k{K}")}
        return [
            deeper.get(r.rule, r) if r.target == "tiny" and r.trace.K < K else r
            for r in self.of(drafter)
        ]

    def _of(self, drafter: str) -> tuple[Recorded, ...]:
        if drafter not in self._kept:
            files = [] if self.folder is None else [self.folder / f.format(drafter) for f in FILES]
            found = [self._read(drafter, path) for path in files if path.is_file()]
            self._kept[drafter] = (*found, *(r for r in self.given if r.drafter == drafter))
        return self._kept[drafter]

    def _read(self, drafter: str, path: Path) -> Recorded:
        trace = self._trace(path)
        assert self.folder is not None
        name = str(path.relative_to(self.folder).with_suffix(""))
        cost = costs_of({name: path})[name]
        if not isinstance(cost, CostModel):
            cost = CostModel.from_ratio(cost, trace.K)
        target = "smollm2" if name.startswith("smollm2") else "tiny"
        return Recorded(name, drafter, target, trace, cost, repetition(trace))

    def _trace(self, path: Path) -> Trace:
        trace = load_trace(path)
        if self.prompts is not None and self.prompts < trace.sequences:
            even = np.linspace(0, trace.sequences - 1, self.prompts).round().astype(np.int64)
            trace = trace.select(even)
        return trace


def repetition(trace: Trace) -> str:
    """REPETITIVE where a fifth of a recording's 8-grams or more are repeated, else ''."""
    return REPETITIVE if repeated_8grams(trace) >= MOST_REPEATED else ""


def repeated_8grams(trace: Trace, n: int = 8) -> float:
    """Share of n-grams that occurred earlier in the same output."""
    seen = total = 0
    for start, end in zip(trace.offset, trace.offset[1:]):
        text: Sequence[int] = trace.token[start:end].tolist()
        grams = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
        total, seen = total + len(grams), seen + len(grams) - len(set(grams))
    return seen / total if total else 0.0


@dataclass(frozen=True)
class ExitForm:
    """An early exit: the target's first `depth` layers, and `new` ones after them."""

    depth: int
    new: int

    @property
    def layers(self) -> int:
        return self.depth + self.new


def layer_and_head(cost: CostModel, form: ExitForm, target_layers: int) -> tuple[float, float]:
    """(seconds of a layer, seconds of the rest of a step, its head) of a measured early exit.

    A plain step runs all of the target's layers and a head, a draft step those of `form` and a
    head. Where that leaves less than nothing for a head, all of a draft step is its layers.
    """
    step = float(cost.draft[1])
    layer = (cost.baseline - step) / (target_layers - form.layers)
    layer = min(layer, step / form.layers)
    return layer, step - form.layers * layer


def exit_cost(cost: CostModel, form: ExitForm, other: ExitForm, target_layers: int) -> CostModel:
    """The costs measured for one early exit, scaled to another of the same target.

    | part | scaled |
    | --- | --- |
    | draft | by its layers and head, `layer_and_head` |
    | verify | further rows skip the first `depth` layers, which drafting has run |
    """
    layer, head = layer_and_head(cost, form, target_layers)
    factor = (head + other.layers * layer) / float(cost.draft[1])
    skipped = (other.depth - form.depth) / (target_layers - form.depth)
    verify = cost.verify - skipped * np.maximum(cost.verify - cost.verify[0], 0.0)
    return replace(cost, draft=factor * cost.draft, verify=verify, precision=None)


@dataclass(frozen=True)
class BundledTarget:
    """A target of bundled recordings: its name, layers, and the early exit that was measured."""

    name: str
    layers: int
    exit: ExitForm


TARGETS = {
    "3f3badec853498770317b723278334157ccfd0808eb8557b6d0c41f9f19ad5de": BundledTarget(
        "tiny", 10, ExitForm(1, 1)
    ),
    "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd": BundledTarget(
        "smollm2", 30, ExitForm(4, 1)
    ),
}


def target_of(weights: str) -> BundledTarget | None:
    """The bundled target with these weights; None for another."""
    return TARGETS.get(weights)

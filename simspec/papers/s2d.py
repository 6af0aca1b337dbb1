"""S2D (arXiv 2407.01955): seconds of a cascade of exits, its claims, Tables 3 and 4, Figure 3."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simspec.cost.model import CostModel
from simspec.numerics.stats import difference, quotient
from simspec.output.table import Table
from simspec.papers.card import HELD_OUT, Card, pairs, shared_lengths
from simspec.papers.claim import S2D, Claim, Inputs
from simspec.papers.evidence import Array, Effect, EffectSource, excess, observe
from simspec.papers.recorded import (
    PRICES,
    Price,
    Recorded,
    by_prompt,
    crossed,
    layer_and_head,
    repetition,
    target_of,
)
from simspec.papers.table import (
    FLAT,
    MISSING,
    Cell,
    Figure,
    bundled,
    card_of,
    figure,
    learned,
    plain,
)
from simspec.policies.fixed import fixed
from simspec.replay.replay import replay
from simspec.reports.cascades import default_thresholds
from simspec.trace.exits import ExitDrafts, cascade, exits_path, read_exits
from simspec.trace.trace import Trace, load_trace

Thresholds = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class SortedRecording:
    """A sorted drafter's recording with all of its exits, and what its steps cost.

    | field | meaning |
    | --- | --- |
    | trace, drafts | the recording and its exits |
    | cost | of verification and overhead |
    | layer, head | seconds of a layer and of the vocabulary head |
    """

    trace: Trace
    drafts: ExitDrafts
    cost: CostModel
    layer: float
    head: float

    def run(self, thresholds: Thresholds, k: int) -> tuple[Array, Array]:
        """(seconds, rounds), float64[S] each, of drafts of k tokens.

        A token runs the layers up to its exit, and the head at every exit on the way that some
        threshold opens. Rows that catch up with deeper layers ride in later passes.
        """
        derived, exits = cascade(self.trace, self.drafts, thresholds)
        rounds = replay(derived, fixed(k), cost=CostModel.from_ratio(0.0, self.trace.K))
        opened = np.array([value < 1 for value in thresholds] + [True])
        steps = self.layer * np.array(self.drafts.layers) + self.head * np.cumsum(opened)
        drafted = np.arange(exits.shape[1]) < rounds.computed[:, None]
        place = np.minimum(exits[rounds.row], len(steps) - 1)
        drafting = np.where(drafted, steps[place], 0.0).sum(axis=1)
        seconds = drafting + self.cost.verify[rounds.drafted] + self.cost.overhead
        return by_prompt(seconds, rounds), np.diff(rounds.offset).astype(np.float64)

    def all_lengths(self, thresholds: Sequence[Thresholds]) -> tuple[Array, Array]:
        """(seconds, rounds), float64[T K, S], at each thresholds and each length from 1 to K."""
        lengths = range(1, self.trace.K + 1)
        found = [self.run(values, k) for values in thresholds for k in lengths]
        return np.stack([seconds for seconds, _ in found]), np.stack(
            [rounds for _, rounds in found]
        )

    def last_exit(self, trace: Trace) -> tuple[Array, Array]:
        """The same of another recording, float64[K, S], whose every token its last exit drafts."""
        step = self.layer * self.drafts.layers[-1] + self.head
        found = []
        for k in range(1, trace.K + 1):
            rounds = replay(trace, fixed(k), cost=CostModel.from_ratio(0.0, trace.K))
            seconds = step * rounds.computed + self.cost.verify[rounds.drafted] + self.cost.overhead
            found.append((by_prompt(seconds, rounds), np.diff(rounds.offset).astype(np.float64)))
        return np.stack([seconds for seconds, _ in found]), np.stack(
            [rounds for _, rounds in found]
        )


def alone(exits: int, exit: int) -> Thresholds:
    """The thresholds at which one exit drafts every token."""
    return tuple(1.0 if i < exit else 0.0 for i in range(exits - 1))


def cascades(exits: int) -> list[Thresholds]:
    """The default thresholds that let several exits draft."""
    return default_thresholds(exits)[exits:]


def sorted_recording(card: Card, inputs: Inputs, price: Price) -> SortedRecording | None:
    """The recording next to a sorted drafter's card, at this price; None without it or costs.

    At a ratio c a token through all layers of the drafter costs c plain steps, and heads add
    nothing. At measured costs layer and head are those of the target's measured early exit.
    """
    target, path = target_of(card.target), card.recording
    if target is None or not (path.is_file() and exits_path(path).is_file()):
        return None
    measured = [r for r in inputs.recordings.of("early_exit") if r.target == target.name]
    if not measured:
        return None
    trace = load_trace(path)
    drafts, cost = read_exits(exits_path(path), trace), price.of(measured[0].cost)
    if price.ratio is None:
        layer, head = layer_and_head(cost, target.exit, target.layers)
    else:
        layer, head = price.ratio * cost.baseline / drafts.layers[-1], 0.0
    return SortedRecording(trace, drafts, cost, layer, head)


def sorted_training(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 18a: how much slower a drafter trained at its last exit alone is than a cascade of
    exits trained together, each at its best length, and thresholds, of the other half."""
    found = []
    allowed = {"loss.together", "settings.thresholds"}
    for together, single in pairs(inputs.cards, "sorted", allowed):
        if together.setting("together") is not True or single.setting("together") is not False:
            continue
        own = sorted_recording(together, inputs, price)
        if own is None or not single.recording.is_file():
            continue
        other = load_trace(single.recording)
        if not np.array_equal(own.trace.token, other.token):
            continue
        theirs, _ = own.last_exit(other)
        ours, _ = own.all_lengths(cascades(own.drafts.exits))
        columns = np.stack([crossed(x, own.trace)[0] for x in (theirs, ours)], -1)
        names = " / ".join(card.label for card in (together, single))
        source = EffectSource(names, own.trace.meta.device, repetition(own.trace))
        part = "time of the last exit alone over that of the cascade, less 1"
        found.append(observe(part, source, price.name, columns, excess, seed=inputs.seed))
    return found


SHOWN = tuple(price for price in PRICES if price.ratio is None or price.flat)
DRAFTED = 4
"""Tokens of a draft in Figure 3, as `simspec cascade` takes by default."""
COST_NOTE = (
    "At c a token through all layers of the sorted drafter costs c plain steps, and verification "
    "one; measured: layers and heads as in the target's measured early exit."
)
MethodRun = tuple[Array, Array, Trace, float]
"""(seconds, rounds) float64[C, S] of C choices, their recording, and a plain step's seconds."""


LOSSES = {
    "eagle-loss-printed": "2.73",
    "eagle-loss-features": "2.70",
    "eagle-loss-tokens": "1.61",
    "eagle-shifted": "-",
}
"""EAGLE by the weights of its loss: our ablation, and the paper's speedup (Table 3)."""


def table_3(inputs: Inputs) -> Table:
    """Accepted length of EAGLE heads that learned features, tokens or both."""
    rows: list[tuple[Cell, ...]] = []
    base = card_of(inputs, next(iter(LOSSES)))
    for name, printed in LOSSES.items():
        card = card_of(inputs, name)
        if card is None or base is None:
            rows.append((name, *[MISSING] * 5, printed))
            continue
        weights = (card.asked.get("loss.regression", 1.0), card.asked["loss.weight"])
        lengths: list[Cell] = [Figure(length.interval, ".3f") for length in card.lengths]
        lengths += ["-"] * (2 - len(lengths))
        change: Cell = "-"
        for own, other in shared_lengths(card, base) if card is not base else ():
            if own.where != HELD_OUT and own.sums is not None and other.sums is not None:
                columns = [*own.sums[:, :2].T, *other.sums[:, :2].T]
                change = figure(columns, difference, "+.3f", inputs.seed)
        rows.append((name, *(f"{float(w):g}" for w in weights), *lengths, change, printed))
    return Table(
        title="S2D Table 3: what EAGLE's loss compares",
        headings=(
            "ablation", "w_reg", "w_cls", "held-out text", "sampled outputs", "change",
            "printed: speedup",
        ),
        rows=tuple(rows),
        notes=(
            "Accepted length of drafts of 5 from every position; change: of sampled outputs, from "
            "the first row. Loss: w_reg SmoothL1 of features + w_cls cross-entropy of tokens. The "
            "paper's target is Llama 2 13B, on GSM8K.",
            *learned(inputs, *LOSSES),
        ),
    )  # fmt: skip


def table_4(inputs: Inputs) -> Table:
    """A separate draft model, single exits, and the cascade: speedup and mean accepted tokens."""
    by_price = [(price, _method_runs(inputs, price)) for price in SHOWN]
    shown_mat = dict(by_price)[FLAT]
    rows: list[tuple[Cell, ...]] = []
    for name in shown_mat:
        speeds = [speed_and_mat(of[name], inputs)[0] for _, of in by_price if name in of]
        rows.append((name, *speeds, speed_and_mat(shown_mat[name], inputs)[1]))
    names = [MISSING] * (len(SHOWN) + 1)
    return Table(
        title="S2D Table 4: speedup and mean accepted tokens (MAT)",
        headings=("method", *(price.name for price in SHOWN), f"MAT at {FLAT.name}"),
        rows=tuple(rows) or (("SoFT + S2D", *names),),
        notes=(
            COST_NOTE,
            "Draft lengths, and the cascade's thresholds, are chosen on the other half of the "
            "prompts. `model` is as costly as the sorted drafter at c. One target, three in s2d-2.",
            *learned(inputs, "sorted-together", "sorted-single", "model"),
        ),
    )


def _method_runs(inputs: Inputs, price: Price) -> dict[str, MethodRun]:
    """MethodRuns by method, {} without recordings."""
    found: dict[str, MethodRun] = {}
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


def speed_and_mat(run: MethodRun, inputs: Inputs) -> tuple[Figure, Figure]:
    """Speedup and mean accepted tokens, at the choice that is fastest on the other half."""
    seconds, rounds, trace, baseline = run
    tokens = np.diff(trace.offset).astype(np.float64)
    chosen, setting = crossed(seconds, trace)
    counts = rounds[setting, np.arange(trace.sequences)]
    return (
        figure((tokens * baseline, chosen), quotient, seed=inputs.seed),
        figure((tokens, counts), quotient, seed=inputs.seed),
    )


def figure_3(inputs: Inputs) -> Table:
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
    return Table(
        title=f"S2D Figure 3: speedup by thresholds, drafts of {DRAFTED}",
        headings=("thresholds", *(price.name for price in SHOWN), "MAT"),
        rows=tuple(rows) or (("-", *[MISSING] * (len(SHOWN) + 1)),),
        notes=(COST_NOTE, "0 always exits, 1 never. The threshold of the last exit is a policy."),
    )


CLAIMS = (
    Claim(
        18, "Sorted training with adaptive exits beats one fixed exit.", S2D, "Table 2",
        sorted_training, part="a", needs="no card",
        detail="Recordings of drafters trained at all exits and at the last. Lengths, and one "
        "threshold from 0.05 to 0.95 for all exits, are chosen on the other half.",
        regime="one sorted drafter for several targets, against drafters of one exit.",
    ),
)  # fmt: skip


TABLES = {"s2d-3": table_3, "s2d-4": table_4, "s2d-figure-3": figure_3}

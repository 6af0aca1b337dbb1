"""S2D (arXiv 2407.01955): Tables 2 to 4, Figure 3, and claim 18."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simspec.cost.model import CostModel
from simspec.numerics.stats import Estimate
from simspec.output.frames import DataFrame, frame
from simspec.papers.claims import Claim, Effect
from simspec.papers.recorded import (
    FLATS,
    Array,
    Recordings,
    ablations,
    crossed,
    figure,
    layer_and_head,
    learned,
)  # fmt: skip
from simspec.policies.fixed import fixed
from simspec.replay.metrics import by_prompt
from simspec.replay.replay import replay
from simspec.trace.exits import ExitDrafts, cascade, exits_path, read_exits
from simspec.trace.trace import Trace, load_trace

Thresholds = tuple[float, ...]
Runs = tuple[Array, Array]
"""(seconds, rounds), float64[C, S] each, of C settings."""
TARGETS = {"small": "7b", "middle": "13b", "large": "70b"}
"""The Llama 2 in whose place each of our targets of 5, 10 and 20 layers is."""
LLAMA_2 = {
    "7b": (32, 4096, 4096, 11008), "13b": (40, 5120, 5120, 13824), "70b": (80, 8192, 1024, 28672),
}  # fmt: skip
"""Layers, width, width of the keys, and width of the MLP of Llama 2; 32,000 tokens."""
PRINTED = {
    "SoFT + S2D": ("1.27/3.01", "1.38/2.89", "1.98/2.44"),
    "SFT L12 + SD": ("1.16/3.44", "1.10/3.16", "1.94/2.54"),
    "SoFT L6 + SD": ("1.30/2.53", "1.35/2.87", "1.87/2.14"),
    "SoFT L9 + SD": ("1.26/3.05", "1.32/2.87", "1.94/2.34"),
    "SoFT L12 + SD": ("1.07/3.22", "1.20/3.17", "1.96/2.53"),
}
"""Speedup and MAT of the paper's Table 2 at T = 1, for Vicuna 7B, 13B and LLaMA Chat 70B; rows by
the paper's layers."""
LOSSES = {
    "eagle-loss-printed": "2.73", "eagle-loss-features": "2.70", "eagle-loss-tokens": "1.61",
    "eagle-shifted": "-",
}  # fmt: skip
"""EAGLE by the weights of its loss: our ablation, and the paper's speedup (Table 3)."""
COST_NOTE = (
    "Flat: a token through all layers of the sorted drafter costs c plain steps, a verification "
    "one. Measured: layers and heads as in the target's measured early exit. Lengths and "
    "thresholds are chosen on the other half of the prompts."
)


@dataclass(frozen=True, eq=False)
class SortedRecording:
    """A sorted drafter's recording with all of its exits; cost prices verification and overhead,
    layer and head are seconds of a layer and of the vocabulary head."""

    trace: Trace
    drafts: ExitDrafts
    cost: CostModel
    layer: float
    head: float
    regime: str = ""

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

    def all_lengths(self, thresholds: Sequence[Thresholds]) -> Runs:
        """Each of the thresholds at each length from 1 to K."""
        lengths = range(1, self.trace.K + 1)
        seconds, rounds = zip(*(self.run(values, k) for values in thresholds for k in lengths))
        return np.stack(seconds), np.stack(rounds)

    def last_exit(self, trace: Trace) -> Runs:
        """The lengths of another recording whose every token its last exit drafts."""
        step, found = self.layer * self.drafts.layers[-1] + self.head, []
        for k in range(1, trace.K + 1):
            rounds = replay(trace, fixed(k), cost=CostModel.from_ratio(0.0, trace.K))
            seconds = step * rounds.computed + self.cost.verify[rounds.drafted] + self.cost.overhead
            found.append((by_prompt(seconds, rounds), np.diff(rounds.offset).astype(np.float64)))
        seconds_of, rounds_of = zip(*found)
        return np.stack(seconds_of), np.stack(rounds_of)

    @property
    def exits(self) -> int:
        return len(self.drafts.layers)


def alone(exits: int, exit: int) -> Thresholds:
    """The thresholds at which one exit drafts every token."""
    return tuple(1.0 if i < exit else 0.0 for i in range(exits - 1))


def cascades(exits: int) -> list[Thresholds]:
    """Equal thresholds from 0.05 to 0.95 of all exits but the last: 0 always exits, 1 never."""
    return [(percent / 100,) * (exits - 1) for percent in range(5, 100, 5)]


def methods(own: SortedRecording, single: Trace | None) -> dict[str, Runs]:
    """{row of Tables 2 and 4: the runs of all its settings}."""
    found = {f"SFT L{own.drafts.layers[-1]} + SD": own.last_exit(single)} if single else {}
    for exit, layer in enumerate(own.drafts.layers):
        found[f"SoFT L{layer} + SD"] = own.all_lengths([alone(own.exits, exit)])
    return found | {"SoFT + S2D": own.all_lengths(cascades(own.exits))}


def speed_and_mat(runs: Runs, own: SortedRecording) -> tuple[Estimate, Estimate]:
    """Speedup and mean accepted tokens, at the setting that is fastest on the other prompts."""
    seconds, rounds = runs
    tokens = np.diff(own.trace.offset).astype(np.float64)
    chosen, setting = crossed(seconds, own.trace)
    counts = rounds[setting, np.arange(own.trace.sequences)]
    return figure(tokens * own.cost.baseline, chosen), figure(tokens, counts)


def ablation(recordings: Recordings, c: float | None, seed: int = 0) -> SortedRecording | None:
    """The sorted drafter of one budget on the embedded target, at measured or at flat costs."""
    card = recordings.card("sorted-together", seed)
    measured = [r for r in recordings.of("early_exit") if r.target == "tiny"]
    if card is None or not measured or not card.path.with_suffix(".parquet").is_file():
        return None
    path, base = card.path.with_suffix(".parquet"), measured[0].at(c)
    trace = load_trace(path)
    drafts = read_exits(exits_path(path), trace)
    layer, head = layer_and_head(base.cost)
    if c is not None:
        layer, head = c * base.cost.baseline / drafts.layers[-1], 0.0
    return SortedRecording(trace, drafts, base.cost, layer, head, base.regime)


def single(recordings: Recordings, seed: int = 0) -> Trace | None:
    """The recording of the drafter trained at its last exit alone, of the same budget."""
    card = recordings.card("sorted-single", seed)
    path = card and card.path.with_suffix(".parquet")
    return load_trace(path) if path and path.is_file() else None


def matrix_weights(model: str, layers: int | None = None, head: bool = True) -> int:
    """Weights of the matrices that a row is multiplied by in a Llama 2: (2 d^2 + 2 d g + 3 d f) a
    layer and d V for the head; d = width, g = width of the keys, f = of the MLP, V = 32,000."""
    count, d, g, f = LLAMA_2[model]
    layer = 2 * d * (d + g) + 3 * d * f
    return layer * (count if layers is None else layers) + d * 32_000 * head


def on_target(recordings: Recordings, size: str) -> tuple[SortedRecording, Trace] | None:
    """The sorted drafter's recording on one target, and that of the single exit.

    A pass costs the weights that it reads of the paper's models: 6, 9 or 12 layers and the head of
    7B for the drafter's exits, all of the target's for a verification.
    """
    path = recordings.folder and recordings.folder / f"s2d/{size}-coupled.parquet"
    if path is None or not path.is_file():
        return None
    trace, target = load_trace(path), matrix_weights(TARGETS[size])
    drafts = replace(read_exits(exits_path(path), trace), layers=(6, 9, 12))
    layer, head = matrix_weights("7b", 1, False) / target, matrix_weights("7b", 0) / target
    own = SortedRecording(trace, drafts, CostModel.from_ratio(0.0, trace.K), layer, head)
    return own, load_trace(path.with_name(f"{size}-coupled-single.parquet"))


def table_2(recordings: Recordings) -> DataFrame:
    """Speedup and mean accepted tokens of every method on each target, and the mean speedup."""
    recorded = {size: on_target(recordings, size) for size in TARGETS}
    runs = {size: methods(*of) for size, of in recorded.items() if of}
    rows = []
    for name, printed in PRINTED.items():
        row: dict[str, Any] = {"method": name}
        for (size, of), paper in zip(recorded.items(), printed):
            speed, mat = speed_and_mat(runs[size][name], of[0]) if of else (None, None)
            row |= {size: speed, f"{size}: MAT": mat, f"{size}: printed": paper}
        speeds = [row[size].value for size in TARGETS if row[size]]
        rows.append(row | {"mean": float(np.mean(speeds)) if speeds else None})
    return frame(
        rows, title="S2D Table 2: one sorted drafter for targets of three sizes",
        formats={"mean": ".2f"},
        notes=(
            "Targets of 5, 10 and 20 layers are in place of Vicuna 7B, 13B and LLaMA Chat 70B. "
            "Acceptance is theirs; seconds are the weights that a pass of the paper's models "
            "reads, with exits after 6, 9 and 12 of 7B's layers. Draft lengths and thresholds are "
            "chosen on the other half of the prompts.",
        ),
    )  # fmt: skip


def table_4(recordings: Recordings) -> DataFrame:
    """Single exits, and the cascade: speedup and mean accepted tokens."""
    rows: dict[str, dict[str, Any]] = {}
    for own in filter(None, (ablation(recordings, c) for c in FLATS)):
        for name, of in methods(own, single(recordings)).items():
            speed, mat = speed_and_mat(of, own)
            rows.setdefault(name, {"method": name})[own.regime] = speed
            rows[name]["MAT, flat"] = mat
    return frame(
        rows.values(), title="S2D Table 4: speedup and mean accepted tokens (MAT)",
        notes=(COST_NOTE, learned(recordings, "sorted-together", "sorted-single")),
    )  # fmt: skip


def figure_3(recordings: Recordings) -> DataFrame:
    """Speedup by the thresholds of the exits, drafts of 4."""
    rows: dict[str, dict[str, Any]] = {}
    for own in filter(None, (ablation(recordings, c) for c in FLATS)):
        tokens = np.diff(own.trace.offset).astype(np.float64)
        for values in [alone(own.exits, e) for e in range(own.exits)] + cascades(own.exits):
            seconds, rounds = own.run(values, 4)
            name = "/".join(f"{value:g}" for value in values)
            row = rows.setdefault(name, {"thresholds": name})
            row[own.regime] = figure(tokens * own.cost.baseline, seconds)
            row["MAT"] = float(tokens.sum() / rounds.sum())
    return frame(
        rows.values(), title="S2D Figure 3: speedup by thresholds, drafts of 4",
        notes=(COST_NOTE, "0 always exits, 1 never. The threshold of the last exit is a policy."),
    )  # fmt: skip


def loss_weights(recordings: Recordings) -> DataFrame:
    """Table 3: EAGLE heads that learned features, tokens or both."""
    names: dict[str, dict[str, Any]] = {}
    for name, printed in LOSSES.items():
        if card := recordings.card(name):
            loss = card.data["asked"]["loss"]
            shown = f"{loss.get('regression', 1.0):g} / {loss['weight']:g}"
            names[name] = {"w_reg / w_cls": shown, "printed: speedup": printed}
    return ablations(
        "S2D Table 3: what EAGLE's loss compares", recordings, names,
        "Loss: w_reg SmoothL1 of features + w_cls cross-entropy of tokens. The paper's target is "
        "Llama 2 13B, on GSM8K.",
    )  # fmt: skip


TABLES: dict[str, Callable[[Recordings], DataFrame]] = {
    "s2d-2": table_2, "s2d-3": loss_weights, "s2d-4": table_4, "s2d-figure-3": figure_3,
}  # fmt: skip


def cascade_over_single(recordings: Recordings) -> list[Effect]:
    """Claim 18a: how much slower a drafter trained at its last exit alone is than a cascade of
    exits trained together, each at its best length, and thresholds, of the other half."""
    found = []
    for seed, c in ((seed, c) for c in FLATS for seed in (0, 1)):
        own, other = ablation(recordings, c, seed), single(recordings, seed)
        if own and other:
            on, pair = f"sorted-single / sorted-together, seed {seed}", "tiny/coupled"
            found.append(_excess(own, other, on, pair))
    return found


def cascade_by_target(recordings: Recordings) -> list[Effect]:
    """Claim 18c: the same on each of three targets, by the weights that a pass reads."""
    found = {size: on_target(recordings, size) for size in TARGETS}
    return [_excess(*of, f"s2d/{size}", f"s2d/{size}") for size, of in found.items() if of]


def _excess(own: SortedRecording, other: Trace, on: str, pair: str) -> Effect:
    theirs, ours = own.last_exit(other)[0], own.all_lengths(cascades(own.exits))[0]
    columns = tuple(crossed(x, own.trace)[0] for x in (theirs, ours))
    what = "time of the last exit alone over that of the cascade, less 1"
    return Effect(what, on, pair, own.regime or "by weights", columns)


CLAIMS = (
    Claim(
        "18a", "Sorted training with adaptive exits beats one fixed exit.", "Table 2",
        cascade_over_single,
    ),
    Claim(
        "18c", "One sorted drafter with adaptive exits beats one exit on three sizes.", "Table 2",
        cascade_by_target,
    ),
)  # fmt: skip

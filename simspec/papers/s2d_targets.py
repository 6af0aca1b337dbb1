"""S2D Tables 1, 2 and 5: a sorted target, targets of three sizes, and one trained on a task."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simspec.cost.model import CostModel
from simspec.cost.roofline import SHAPES, matrix_weights
from simspec.numerics.stats import quotient
from simspec.output.files import read_json
from simspec.output.table import Table
from simspec.papers.claim import S2D, Claim, Inputs
from simspec.papers.evidence import Array, Effect, EffectSource, excess, observe
from simspec.papers.recorded import Price, crossed
from simspec.papers.s2d import SortedRecording, alone, cascades, speed_and_mat
from simspec.papers.table import MISSING, Cell, Figure, figure, plain
from simspec.trace.exits import exits_path, read_exits
from simspec.trace.trace import Trace, load_trace

PAPER_TARGETS = {"small": "llama-2-7b", "middle": "llama-2-13b", "large": "llama-2-70b"}
"""The paper's target in whose place each of ours is; Vicuna has the sizes of Llama 2."""
RULE = "coupled"
PRINTED = {
    "SoFT + S2D": ("1.27/3.01", "1.38/2.89", "1.98/2.44"),
    "SFT L4 + SD": ("1.16/3.44", "1.10/3.16", "1.94/2.54"),
    "SoFT L2 + SD": ("1.30/2.53", "1.35/2.87", "1.87/2.14"),
    "SoFT L3 + SD": ("1.26/3.05", "1.32/2.87", "1.94/2.34"),
    "SoFT L4 + SD": ("1.07/3.22", "1.20/3.17", "1.96/2.53"),
}
"""Speedup and MAT of the paper's Table 2 at T = 1, for Vicuna 7B, 13B and LLaMA Chat 70B; rows by
our layers, in place of the paper's 6, 9 and 12."""


SORTED_TARGET = {
    "plain decoding": ("", "1 / 48.97"),
    "sorted target, its exits draft": ("sorted", "1.21 / 33.51"),
    "sorted drafter": ("middle", "1.53 / 48.97"),
}
"""Ways to decode: our recording, and the paper's speedup and accuracy on GSM8K (Table 1)."""
TARGET_LAYERS = (12, 20)
"""Of 13B, in place of ours after which the sorted target's drafting exits are."""


def on_target(folder: Path | None, size: str) -> tuple[SortedRecording, Trace] | None:
    """The sorted drafter's recording on one target, and that of the single exit."""
    if folder is None:
        return None
    path = folder / "s2d" / f"{size}-{RULE}.parquet"
    own = priced_by_weights(path, size)
    if own is None:
        return None
    return own, load_trace(path.with_name(f"{size}-{RULE}-single.parquet"))


def priced_by_weights(path: Path, size: str) -> SortedRecording | None:
    """A sorted drafter's recording on a target of this size; None where there is none.

    A pass costs the weights that it reads (`matrix_weights`): of 6, 9 or 12 layers and the head of
    the 7B model for a drafter's exits, of the paper's target for a verification.
    """
    if not path.is_file():
        return None
    trace = load_trace(path)
    drafts = replace(read_exits(exits_path(path), trace), layers=(6, 9, 12))
    small, target = SHAPES["llama-2-7b"], matrix_weights(SHAPES[PAPER_TARGETS[size]])
    layer = matrix_weights(small, 1, head=False) / target
    cost = CostModel.from_ratio(0.0, trace.K)
    head = matrix_weights(small, 0) / target
    return SortedRecording(trace, drafts, cost, layer, head)


def on_itself(folder: Path | None) -> SortedRecording | None:
    """The recording of a sorted target whose exits draft, each at the weights of 13B's layers."""
    path = None if folder is None else folder / "s2d" / f"sorted-{RULE}.parquet"
    if path is None or not path.is_file():
        return None
    trace, shape = load_trace(path), SHAPES[PAPER_TARGETS["middle"]]
    drafts = replace(read_exits(exits_path(path), trace), layers=TARGET_LAYERS)
    layer, head = (matrix_weights(shape, 1, head=False), matrix_weights(shape, 0))
    whole = matrix_weights(shape)
    cost = CostModel.from_ratio(0.0, trace.K)
    return SortedRecording(trace, drafts, cost, layer / whole, head / whole)


def table_1(inputs: Inputs) -> Table:
    """Speedup and held-out loss of a target trained with exits, and with a sorted drafter."""
    folder = inputs.recordings.folder
    losses = {} if folder is None else heldout_losses(folder / "s2d" / "targets.json")
    drafter = on_target(folder, "middle")
    recorded = {"sorted": on_itself(folder), "middle": drafter[0] if drafter else None}
    rows: list[tuple[Cell, ...]] = []
    for name, (kind, printed) in SORTED_TARGET.items():
        own = recorded.get(kind)
        speed: Cell = plain(1.0) if not kind else MISSING
        if own is not None:
            tokens = np.diff(own.trace.offset).astype(np.float64)
            seconds, _ = crossed(own.all_lengths(cascades(own.drafts.exits))[0], own.trace)
            speed = figure((tokens, seconds), quotient, seed=inputs.seed)
        trained = "sorted" if kind == "sorted" else "middle"
        rows.append((name, speed, losses.get(trained, MISSING), printed))
    more = losses.get("continued")
    return Table(
        title="S2D Table 1: a sorted target against a sorted drafter",
        headings=("decoding", "speedup", "held-out loss", "printed: speedup / accuracy"),
        rows=tuple(rows),
        notes=(
            "The embedded target, of 10 layers, in place of Llama 2 13B: its loss in nats a token "
            "of prose in place of accuracy. The sorted target learned 400 steps more, with exits "
            "after 3 and 5 layers"
            + (f"; the same steps without exits give {more}. " if more is not None else ". ")
            + "Seconds, lengths and thresholds as in s2d-2.",
        ),
    )


def heldout_losses(path: Path) -> dict[str, Figure]:
    """{target: nats a token of held-out text}, as `tools/several_targets.py` writes them."""

    def read(data: Any) -> dict[str, Figure]:
        try:
            return {name: plain(float(data[name]["heldout_loss"]), ".3f") for name in data}
        except (KeyError, TypeError) as error:
            raise ValueError(f"lacks {error}, expected a loss of each target") from None

    return read_json(path, read, "file of losses") if path.is_file() else {}


def methods(own: SortedRecording, single: Trace) -> dict[str, tuple[Array, Array]]:
    """{row of the table: (seconds, rounds) of all its settings, float64[C, S] each}."""
    exits = own.drafts.exits
    found = {"SFT L4 + SD": own.last_exit(single)}
    for exit in range(exits):
        found[f"SoFT L{exit + 2} + SD"] = own.all_lengths([alone(exits, exit)])
    return found | {"SoFT + S2D": own.all_lengths(cascades(exits))}


def table_2(inputs: Inputs) -> Table:
    """Speedup and mean accepted tokens of every method on each target, and the mean speedup."""
    recorded = [on_target(inputs.recordings.folder, size) for size in PAPER_TARGETS]
    runs = [methods(*of) if of else {} for of in recorded]
    rows: list[tuple[Cell, ...]] = []
    for name, printed in PRINTED.items():
        cells: list[Cell] = []
        speeds = []
        for of, run, paper in zip(recorded, runs, printed):
            if of is None:
                cells += [MISSING, MISSING, paper]
                continue
            own = of[0]
            speed, mat = speed_and_mat((*run[name], own.trace, own.cost.baseline), inputs)
            speeds.append(speed.estimate.value)
            cells += [speed, mat, paper]
        rows.append((name, *cells, plain(float(np.mean(speeds))) if speeds else MISSING))
    return Table(
        title="S2D Table 2: one sorted drafter for targets of three sizes",
        headings=(
            "method",
            *(f"{size}{what}" for size in PAPER_TARGETS for what in ("", ": MAT", ": printed")),
            "mean",
        ),
        rows=tuple(rows),
        notes=(
            "Targets of 5, 10 and 20 layers are in place of Vicuna 7B, 13B and LLaMA Chat 70B. "
            "Acceptance is theirs; seconds are the weights that a pass of the paper's models "
            "reads, with exits after 6, 9 and 12 of 7B's layers. Draft lengths and thresholds are "
            "chosen on the other half of the prompts.",
        ),
    )


TUNED = {"vanilla": "28.7", "tuned": "48.97"}
"""Targets before and after training on GSM8K, and their accuracy there in the paper (Table 5)."""
LEARNED = {"gsm8k": ("1.38", "1.53"), "text": ("-", "-")}
"""Drafters by what they learned, and the paper's speedups on both targets."""
PRINTED_RATIO = {"gsm8k": "1.11, its text 1.14", "text": "-"}


def table_5(inputs: Inputs) -> Table:
    """Speedup of two sorted drafters on a target before and after its training on their task."""
    folder = inputs.recordings.folder
    own = {} if folder is None else task_recordings(folder)
    losses = {} if folder is None else heldout_losses(folder / "s2d" / "gsm8k-targets.json")
    rows: list[tuple[Cell, ...]] = []
    for learned, printed in LEARNED.items():
        sums = []
        for (target, accuracy), paper in zip(TUNED.items(), printed):
            cells: tuple[Cell, Cell] = (MISSING, MISSING)
            if (of := own.get((learned, target))) is not None:
                run = (*of.all_lengths(cascades(of.drafts.exits)), of.trace, of.cost.baseline)
                cells = speed_and_mat(run, inputs)
                sums += [np.diff(of.trace.offset).astype(np.float64), crossed(run[0], of.trace)[0]]
            row = learned, target, *cells, losses.get(target, MISSING), f"{paper} / {accuracy}"
            rows.append(row)
        ratio = figure(sums[2:] + sums[:2], _ratio, seed=inputs.seed) if len(sums) == 4 else MISSING
        rows.append((learned, "tuned / vanilla", ratio, "-", "-", PRINTED_RATIO[learned]))
    return Table(
        title="S2D Table 5: a target before and after training on the task",
        headings=(
            "drafter learned", "target", "speedup", "MAT", "held-out loss",
            "printed: speedup / accuracy",
        ),
        rows=tuple(rows),
        notes=(
            "Prompts of GSM8K's test split. `tuned` is the embedded target, in place of Llama 2 "
            "13B, trained further on GSM8K's train split; its loss in nats a token of held-out "
            "problems is in place of accuracy. The drafter `text` learned all kinds of text. "
            "Seconds, lengths and thresholds as in s2d-2.",
        ),
    )  # fmt: skip


def task_recordings(folder: Path) -> dict[tuple[str, str], SortedRecording]:
    """{(what the drafter learned, target): its recording on GSM8K}."""
    found = {}
    for learned in LEARNED:
        for target in TUNED:
            path = folder / "s2d" / f"gsm8k-{target}-{learned}.parquet"
            own = priced_by_weights(path, "middle")
            if own is not None:
                found[learned, target] = own
    return found


def _recorded(inputs: Inputs) -> dict[str, tuple[SortedRecording, Trace]]:
    found = {size: on_target(inputs.recordings.folder, size) for size in PAPER_TARGETS}
    return {size: of for size, of in found.items() if of is not None}


def across_targets(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 18c: how much slower a drafter of one exit is than the cascade, on each target."""
    found = []
    for size, (own, single) in _recorded(inputs).items():
        runs = methods(own, single)
        pair = [crossed(runs[name][0], own.trace)[0] for name in ("SFT L4 + SD", "SoFT + S2D")]
        source = EffectSource(f"s2d/{size}", own.trace.meta.device)
        part = "time of the last exit alone over that of the cascade, less 1"
        columns = np.stack(pair, -1)
        found.append(observe(part, source, price.name, columns, excess, seed=inputs.seed))
    return found


def by_size(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 18b: what the first exit costs on the large target, over what it costs on the small."""
    recorded = _recorded(inputs)
    if not {"small", "large"} <= set(recorded):
        return []
    columns = []
    for size in ("large", "small"):
        own, _ = recorded[size]
        for exit in (0, own.drafts.exits - 1):
            seconds, _ = own.all_lengths([alone(own.drafts.exits, exit)])
            columns.append(crossed(seconds, own.trace)[0])
    source = EffectSource("s2d/small, large", recorded["large"][0].trace.meta.device)
    part = "(time of the first exit over the last's, large) / (the same, small), less 1"
    stacked = np.stack(columns, -1)
    return [observe(part, source, price.name, stacked, _more, seed=inputs.seed)]


def _more(totals: Array) -> Array:
    """(a / b) / (c / d) - 1 of totals [..., 4]."""
    return _ratio(totals) - 1


def _ratio(totals: Array) -> Array:
    """(a / b) / (c / d) of totals [..., 4]."""
    found: Array = totals[..., 0] / totals[..., 1] / (totals[..., 2] / totals[..., 3])
    return found


CLAIMS = (
    Claim(
        18, "Small targets want low thresholds, large ones high.", S2D, "Figure 3",
        by_size, (), part="b", needs="no recording",
        detail="The sorted drafter's first exit alone, and its last alone, on the small and the "
        "large target; a pass costs the weights that it reads of the paper's models.",
        regime="targets of several sizes, one drafter.",
        construction="drafts cost a tenth on the large target, so the last exit pays there "
        "wherever it is accepted longer than the first.",
    ),
    Claim(
        18, "One sorted drafter with adaptive exits beats one exit on targets of three sizes.",
        S2D, "Table 2", across_targets, (), part="c", needs="no recording",
        detail="A drafter trained at its last exit alone against the cascade, on each target; "
        "prices as in 18b.",
        regime="Vicuna 7B, 13B and LLaMA Chat 70B, one drafter.",
    ),
)  # fmt: skip

TABLES = {"s2d-1": table_1, "s2d-2": table_2, "s2d-5": table_5}

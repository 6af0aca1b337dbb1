"""Trains every ablation of the papers for one target at one equal budget, and prints their table.

Usage: python tools/train_ablations.py TEXT... --out models/ablations --steps 300 --minutes 60

TEXT are files or folders as for `simspec train`. Each ablation is a folder of --out; its card also
goes to --cards. All learn as many tokens: steps x rows x 192. Stopped, by --minutes, Ctrl-C or a
kill, a second call continues. What drafters read of the target is computed once for all of them.
"""

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from ablation_data import TextWindows, exits_along, record_along, recorded_summary, whole_step

from real.drafters import BUILTIN
from real.files import replace_json
from real.model.checkpoint import load_tokenizer
from real.pair import TINY
from real.train.config import DrafterTraining, TrainConfig, drafter_training, recipe_of, toy_config
from real.train.corpus import encoded_text
from real.train.drafter_data import DrafterData, load_trained_target, prepared_head
from real.train.generate import mixed_batches
from real.train.optimizers import TrainSchedule
from real.train.train_drafter import train_drafter
from real.train.training_loop import Paused
from simspec.output.files import check_output
from simspec.trace.exits import exits_path, write_exits
from simspec.trace.trace import Trace, load_trace

BLEND = 0.5
"""Share of the training text that the target wrote, unless that is what varies."""

DEPTH = {"early_exit": 10, "sorted": 6, "model": 6}
"""Drafters whose recording is kept beside the card, and its draft length: 10 as in EESD Table 4."""
EVERY = {"sorted": 3, "model": 3}
"""Of the recording's sequences every so many are kept: files of exits are large."""


@dataclass(frozen=True)
class Ablation:
    """A drafter, what differs from our recipe, and the share of its text that the target wrote."""

    drafter: str
    settings: Mapping[str, object] = field(default_factory=dict)
    recipe: str = "ours"
    blend: float = BLEND

    def training(self, name: str, schedule: TrainSchedule) -> DrafterTraining:
        """The training of a folder of that name."""
        return drafter_training(
            self.drafter, schedule, settings=self.settings, folder=name, recipe_name=self.recipe
        )


def ablations(layers: int) -> dict[str, Ablation]:
    """The ablations for a target of so many layers, by the name of their folder.

    What one claim compares stands together, so that a run that ends early has judged the first.
    """
    named = {}
    # EESD Table 4 (head alone, self-distillation) and Figures 4 and 5 (N, new layers); all train a
    # head of their own, so that they differ in layers alone
    exits = {
        f"early_exit-n{depth}-x{extra}": Ablation(
            "early_exit", {"depth": depth, "layers": extra, "own_head": True}
        )
        for depth in range(1, min(4, layers))
        for extra in (0, 1, 2)
    }
    first = [name for name in exits if name.startswith("early_exit-n1")]
    named |= {name: exits[name] for name in first}
    named["early_exit-text"] = replace(exits["early_exit-n1-x1"], blend=0.0)
    # EAGLE Figure 10
    for name, inputs in {
        "eagle-shifted": "feature&shifted_token",
        "eagle-unshifted": "feature&unshifted_token",
        "eagle-token": "token",
        "eagle-feature": "feature",
    }.items():
        named[name] = Ablation("eagle", {"inputs": inputs})
    # S2D Table 3: EAGLE's loss of features, of tokens, and both as its authors weigh them
    named["eagle-loss-features"] = Ablation("eagle", {"weight": 0.0})
    named["eagle-loss-tokens"] = Ablation("eagle", {"regression": 0.0})
    named["eagle-loss-printed"] = Ablation("eagle", {"weight": 0.1})
    # EAGLE Table 6 and GLIDE Table 2: text as it is, against outputs of the target
    named["eagle-text"] = replace(named["eagle-shifted"], blend=0.0)
    # GLIDE Figures 4 (without cross-attention) and 7 (layers of the cache)
    named["glide-blind"] = Ablation("glide", {"cross": False})
    for layer in sorted({0, layers // 2, layers - 1}):
        named[f"glide-layer{layer}"] = Ablation("glide", {"reads": layer})
    named["glide-text"] = replace(named[f"glide-layer{layers - 1}"], blend=0.0)
    # S2D: exits trained together, and the last one alone, which then drafts alone
    exits_of = sorted({max(1, round(layers * share)) for share in (3 / 16, 9 / 32, 3 / 8)})
    never = [1.0] * (len(exits_of) - 1)
    named["sorted-together"] = Ablation("sorted", {"exits": exits_of, "together": True})
    named["sorted-single"] = Ablation(
        "sorted", {"exits": exits_of, "thresholds": never, "together": False}
    )
    named |= exits
    # a plain small model: EESD Table 6
    named["model"] = Ablation("model")
    # Medusa's form beside ours
    named["medusa-deep"] = Ablation("medusa", {"blocks": 3})
    named["medusa-paper-form"] = Ablation("medusa", {"blocks": 1, "own_head": True, "decay": 0.8})
    # each drafter as its authors trained it
    for drafter in ("early_exit", "eagle", "medusa", "hydra", "glide", "sorted"):
        named[f"{drafter}-recipe"] = Ablation(drafter, recipe="paper")
    return named


class Stopwatch:
    """Progress that raises Paused at a time limit, or after SIGINT and SIGTERM in its context."""

    def __init__(self, minutes: float):
        self.end = time.monotonic() + 60 * minutes
        self.stopped = False

    def __enter__(self) -> "Stopwatch":
        self.before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def __call__(self, label: str, done: int, total: int, note: str = "") -> None:
        if done and (done == total or done % 50 == 0):
            print(f"{time.strftime('%H:%M:%S')} {label} {done}/{total} {note}", file=sys.stderr)
        if self.stopped or time.monotonic() > self.end:
            raise Paused


@dataclass(frozen=True)
class Course:
    """What all ablations of one target share.

    | field | meaning |
    | --- | --- |
    | schedule | of all: equal steps, and windows of equal size |
    | data | by blend |
    | out, work, cards | folders of models, of checkpoints, and of the cards to keep |
    | recording | accepted lengths are also taken along its sequences; None: along none |
    """

    schedule: TrainSchedule
    data: Mapping[float, DrafterData]
    out: Path
    work: Path
    cards: Path
    recording: tuple[str, Trace] | None

    def train(self, name: str, ablation: Ablation, progress: Stopwatch) -> dict:
        """Trains one ablation into its folder, and returns its card."""
        data = self.data[ablation.blend]
        training = ablation.training(name, self.schedule)
        card = train_drafter(training, data, self.out, self.work, progress)
        evaluation = card["evaluation"]
        if "whole_step" not in card:
            card["whole_step"] = whole_step(training, data)
        if self.recording is not None and "recorded" not in evaluation:
            source, trace = self.recording
            drafter = BUILTIN[ablation.drafter].load(self.out / name, data.target, data.made_for)
            K = max(evaluation["K"], DEPTH.get(ablation.drafter, 0))
            recording = record_along(data.target, drafter, trace, K, progress)
            if ablation.drafter in DEPTH and ablation.recipe == "ours":
                path = self.cards / f"{name}.parquet"
                kept = recording.select(
                    np.arange(0, trace.sequences, EVERY.get(ablation.drafter, 1))
                )
                kept.save(path, small=True)
                if ablation.settings.get("together"):
                    exits = exits_along(data.target, drafter, trace, kept)
                    write_exits(exits, kept, exits_path(path), small=True)
            evaluation["recorded"] = recorded_summary(recording, source, evaluation["K"])
        replace_json(self.out / name / "card.json", card)
        replace_json(self.cards / f"{name}.json", card)
        return card


def prepare(options: argparse.Namespace, chosen: Mapping[str, Ablation], progress) -> Course:
    """Loads the target and its text, and computes what the ablations read of the target."""
    # float32 on every CPU: only some multiply bfloat16, and budgets are to be equal on all
    precise = torch.device(options.device).type == "cpu"
    config = TrainConfig(
        tuple(options.text), distil_tokens=options.distil_tokens, blend=BLEND,
        device=options.device, mixed=not precise,
    )  # fmt: skip
    size = {"steps": options.steps, "rows": options.rows, "length": 192}
    if options.toy:
        config, size = toy_config(config), {"steps": options.steps, "rows": 2, "length": 16}
    # one validation, at the end: the last weights count, for all alike
    schedule = TrainSchedule(**size, every=options.steps, save_every=50, seed=options.seed)
    work = options.out.with_name(options.out.name + "-work")
    tokenizer = load_tokenizer(options.out / "target")
    tokens = encoded_text(config, tokenizer, work, progress)
    trained = load_trained_target(config, tokenizer, tokens, options.out, work, progress)
    data = {}
    for blend in sorted({ablation.blend for ablation in chosen.values()}):
        alike = [ablation for ablation in chosen.values() if ablation.blend == blend]
        source = mixed_batches(replace(config, blend=blend), tokens, trained.distilled, schedule)
        folder = work / "features" / f"{blend:g}"
        windows = TextWindows.of(
            source, schedule.steps, trained.data.target, folder, config.autocast
        )
        data[blend] = replace(trained.data, blend=blend, batches=windows.batches)
        read = [a.training("", schedule) for a in alike]
        names = [recipe_of(t.drafter).reads(prepared_head(t, data[blend]), t.soft) for t in read]
        windows.compute(list(dict.fromkeys(name for of in names for name in of)), progress)
    recording = None
    if options.along is not None:
        recording = options.along.stem, load_trace(options.along)
        weights = recording[1].meta.target.rpartition("/")[2]
        if not trained.data.made_for["weights"].startswith(weights):
            raise ValueError(f"{options.along} is of target {weights}; name one of this target")
    return Course(schedule, data, options.out, work, options.cards, recording)


def row(name: str, card: Mapping) -> str:
    """A line of the table."""
    evaluation = card["evaluation"]
    greedy = evaluation["trained"]["accepted_length"]
    recorded = evaluation.get("recorded", {}).get("accepted_length")
    trained = card["parameters"]["trained"]
    return (
        f"| `{name}` | {card['steps']} | {card['tokens']:,} | {trained:,} "
        f"| {_shown(greedy)} | {_shown(recorded)} |"
    )


def _shown(length: Mapping | None) -> str:
    if length is None:
        return "-"
    bounds = "" if length["low"] is None else f" [{length['low']:.3f}, {length['high']:.3f}]"
    return f"{length['value']:.3f}{bounds}"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; SystemExit for what cannot be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", type=Path, default=TINY / "target")
    parser.add_argument("--cards", type=Path, help="Default: OUT/cards.")
    parser.add_argument("--along", type=Path, help="A recording of the target, not of rejection.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0, help="Of weights and windows; own --out.")
    parser.add_argument("--distil-tokens", type=int, default=500_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="0: as torch chooses.")
    parser.add_argument("--minutes", type=float, default=1e6, help="Then it stops; continue later.")
    parser.add_argument("--only", action="append", help="An ablation's name, repeatable.")
    parser.add_argument("--toy", action="store_true", help="Minute batches, to try it.")
    options = parser.parse_args(arguments)
    if min(options.steps, options.rows, options.distil_tokens) < 1 or options.threads < 0:
        parser.error("--steps, --rows and --distil-tokens are 1 or more, --threads 0 or more")
    options.cards = options.cards or options.out / "cards"
    return options


def main(arguments: Sequence[str] | None = None) -> dict[str, dict]:
    """The cards by name; ValueError where their budgets differ, SystemExit where it was stopped."""
    options = parse(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    if not (options.out / "target").exists():
        shutil.copytree(options.target, options.out / "target")
    config = json.loads((options.out / "target" / "config.json").read_text())
    chosen = ablations(config["num_hidden_layers"])
    if unknown := set(options.only or ()) - set(chosen):
        raise SystemExit(f"{min(unknown)} is no ablation; expected some of {', '.join(chosen)}")
    chosen = {name: chosen[name] for name in chosen if name in (options.only or chosen)}
    options.cards.mkdir(parents=True, exist_ok=True)
    check_output(options.cards / "any.json")
    progress, cards = Stopwatch(options.minutes), {}
    print(
        "| ablation | steps | tokens learned | parameters trained | accepted length, held-out "
        "| along the recording |"
    )
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    try:
        with progress:
            course = prepare(options, chosen, progress)
            for name, ablation in chosen.items():
                cards[name] = course.train(name, ablation, progress)
                print(row(name, cards[name]), flush=True)
    except Paused:
        raise SystemExit(
            f"stopped with {len(cards)} of {len(chosen)} cards: the same call continues"
        ) from None
    if len(budgets := {card["tokens"] for card in cards.values()}) > 1:
        raise ValueError(f"budgets differ: {sorted(budgets)} tokens; delete {options.out}")
    shutil.rmtree(course.work / "features", ignore_errors=True)  # gigabytes
    return cards


if __name__ == "__main__":
    main()

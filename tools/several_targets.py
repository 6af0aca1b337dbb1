"""One sorted drafter for targets of three sizes (S2D Table 2), and a target with exits (Table 1).

Usage: python tools/several_targets.py TEXT... --out models/s2d --minutes 60

TEXT are files or folders as for `simspec train`. The middle target is the embedded one, of 10
layers. The small one keeps its first 5, the large one has 20: each layer is followed by a copy
whose output projections start at zero. Both are then trained on the text. The sorted drafter and
the one of a single exit learn the same text, and nothing that a target wrote: so they belong to no
target. `sorted` and `continued` are the middle target after as many steps more, with the losses of
its exits and without; the exits of `sorted` draft for it. Stopped, by --minutes, Ctrl-C or a kill,
a second call continues.
"""

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from ablation_data import exits_along, record_along
from torch import nn
from train_ablations import Stopwatch

from real.draft.losses import next_token_loss
from real.drafters.sorted import Cascade, SortedDrafter, SortedModel, sorted_loss
from real.files import replace_json
from real.model.checkpoint import load_decoder, load_tokenizer, save_decoder
from real.model.decoder import Decoder
from real.model.stored_weights import made_for, weights_id
from real.model.target import Target
from real.pair import TINY
from real.progress import Progress
from real.record import Settings
from real.record.sequences import target_sequences
from real.rerun import prompts_of, rule_of
from real.train.config import TrainConfig, drafter_training
from real.train.corpus import END, documents, encode, encoded_text, windows
from real.train.drafter_data import load_trained_target
from real.train.optimizers import TrainSchedule
from real.train.train_drafter import train_drafter
from real.train.training_loop import Paused, fit
from simspec.trace.exits import exits_path, write_exits
from simspec.trace.trace import Trace, load_trace

ROOT = Path(__file__).parent.parent
LAYERS = {"middle": 10, "small": 5, "large": 20, "continued": 10, "sorted": 10}
"""Layers of the targets; the middle one is the embedded target as it is."""
TARGET_EXITS = (3, 5, 10)
"""Of the sorted target, as 12, 20 and 40 of the paper's 40 layers; all but the last draft."""
EXITS = (2, 3, 4)
"""As 6, 9 and 12 of 32 layers in the paper, of the 10 of the middle target."""
K = 4
"""Longest draft; exits hold up to 3^K drafts a row."""
RULES = ("coupled",)
"""Greedy outputs of the embedded target repeat themselves, and count in no verdict."""


@dataclass(frozen=True)
class Job:
    """Text, folders and schedules of one call."""

    config: TrainConfig
    tokens: np.ndarray
    out: Path
    work: Path
    steps: int
    drafter_steps: int
    progress: Stopwatch


def resized(decoder: Decoder, layers: int) -> Decoder:
    """A copy with the first `layers`, or with each followed by one that adds nothing yet."""
    decoder = deepcopy(decoder)
    own = list(decoder.layers)
    if layers <= len(own):
        kept = own[:layers]
    elif layers == 2 * len(own):
        kept = [part for layer in own for part in (layer, _silent(layer))]
    else:
        raise ValueError(f"{layers} layers of {len(own)}; expected fewer, or twice as many")
    decoder.config = replace(decoder.config, layers=layers)
    decoder.layers = nn.ModuleList(kept)
    return decoder


def _silent(layer: nn.Module) -> nn.Module:
    copy = deepcopy(layer)
    for matrix in (copy.output, copy.down):
        nn.init.zeros_(matrix.weight)
    return copy


def train_target(job: Job, name: str, layers: int) -> Decoder:
    """The target with these layers, trained unless it exists; `middle` is the embedded one."""
    folder = job.out / name / "target"
    if not (folder / "tokenizer.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted((TINY / "target").iterdir()):
            if name == "middle" or file.name.startswith("tokenizer"):
                shutil.copy(file, folder)
    if not (folder / "model.safetensors").exists():
        decoder = resized(load_decoder(TINY / "target"), layers).requires_grad_(True)
        schedule = TrainSchedule(steps=job.steps, rows=8, length=512, rate=1.5e-3, save_every=50)
        exits = SortedModel.of(decoder, TARGET_EXITS)

        def loss(step: int) -> torch.Tensor:
            rows = windows(job.tokens, schedule.rows, schedule.length, schedule.seed, step)
            batch = torch.from_numpy(rows)
            if name == "sorted":
                return sorted_loss(exits, decoder, batch, soft=False)
            return next_token_loss(decoder(batch[:, :-1]), batch[:, 1:])

        fit(job.work / name, decoder, loss, schedule, job.progress)
        end = load_tokenizer(folder).token_to_id(END)
        save_decoder(decoder, folder, end, schedule.length)
    return load_decoder(folder)


def train_drafters(job: Job, folders: Mapping[str, bool]) -> dict[str, dict]:
    """{folder: card} of drafters with all exits trained, or the last, from the middle target.

    They learn the text alone.
    """
    out, work = job.out / "middle", job.work
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(out / "target")
    known = load_trained_target(job.config, tokenizer, job.tokens, out, work, job.progress)
    schedule = TrainSchedule(
        steps=job.drafter_steps, rows=16, length=192, every=job.drafter_steps, save_every=50
    )
    cards = {}
    for name, together in folders.items():
        settings = {"exits": list(EXITS), "together": together}
        if not together:
            settings["thresholds"] = [1.0] * (len(EXITS) - 1)
        training = drafter_training("sorted", schedule, soft=False, settings=settings, folder=name)
        cards[name] = train_drafter(training, known.data, out, work, job.progress)
    return cards


def heldout_loss(decoder: Decoder, tokens: np.ndarray) -> float:
    """Nats a token on the first windows of held-out text."""
    rows = torch.from_numpy(tokens[: 32 * 513].reshape(32, 513).astype(np.int64))
    with torch.inference_mode():
        parts = [next_token_loss(decoder(row[None, :-1]), row[None, 1:]) for row in rows]
    return round(float(torch.stack(parts).mean()), 4)


def outputs(target: Decoder, source: Trace, weights: str, longest: int = K) -> Trace:
    """What this target writes after the prompts of a recording, under its rule; lengths are 0."""
    settings = Settings(
        longest, int(source.budget.max()), rule_of(source), source.meta.end_tokens, (), (), batch=16
    )
    written = target_sequences(
        Target(target), settings, prompts_of(source), source.sequence.tolist()
    )
    offset = np.concatenate(([0], np.cumsum([len(tokens) for tokens, _ in written])))
    rows = int(offset[-1])
    meta = replace(
        source.meta,
        K=longest,
        target=weights,
        drafter="sorted",
        features=(),
        predictors={},
        tree=(),
    )
    return Trace(
        offset.astype(np.int64),
        source.budget,
        np.concatenate([tokens for tokens, _ in written]).astype(np.int32),
        run=np.zeros(rows, np.uint8),
        depth=np.full(rows, longest, np.uint8),
        prompt=source.prompt,
        prompt_offset=source.prompt_offset,
        sequence=source.sequence,
        meta=meta,
    )


def exits_of(target: Decoder, exits: Sequence[int]) -> SortedDrafter:
    """The drafter that a target's own first layers are, with these exits."""
    first = SortedModel.of(resized(target, exits[-1]), exits)
    return SortedDrafter(first, Cascade(exits, [0.75] * (len(exits) - 1)))


def drafters_of(job: Job, name: str, target: Decoder) -> dict[str, SortedDrafter]:
    """{end of the recording's name: drafter}, the one with several exits last."""
    if name == "sorted":
        return {"": exits_of(target, TARGET_EXITS[:-1])}
    folder = job.out / "middle" / "target"
    middle, tokenizer = load_decoder(folder), load_tokenizer(folder)
    hashes = made_for(folder, middle, tokenizer)
    folders = {"-single": "single", "": "sorted"}
    return {
        end: SortedDrafter.load(job.out / "middle" / drafter, middle, hashes)
        for end, drafter in folders.items()
    }


def record_target(job: Job, name: str, target: Decoder, rule: str, folder: Path) -> None:
    """The recordings of its drafters along this target's outputs, and the exits of the sorted."""
    path = folder / f"{name}-{rule}.parquet"
    if path.exists():
        return
    source = load_trace(ROOT / "traces" / f"tiny-model-{rule}.parquet")
    source = source.select(np.arange(0, source.sequences, 3))
    written = outputs(target, source, weights_id(job.out / name / "target"))
    for end, drafter in drafters_of(job, name, target).items():
        if end:
            recording = record_along(target, drafter, written, K, job.progress)
            recording.save(folder / f"{name}-{rule}{end}.parquet", small=True)
        else:
            record_exits_along(target, drafter, written, path, job.progress)


def record_exits_along(
    target: Decoder, drafter: SortedDrafter, written: Trace, path: Path, progress: Progress
) -> None:
    """The drafter's recording on these sequences, and its exits next to it; both or none."""
    recording = record_along(target, drafter, written, written.meta.K, progress)
    exits = exits_along(target, drafter, written, recording)
    recording.save(path.with_suffix(".tmp"), small=True)
    write_exits(exits, recording, exits_path(path), small=True)
    path.with_suffix(".tmp").rename(path)


def main(arguments: Sequence[str] | None = None) -> dict:
    """Losses of the targets and cards of the drafters; SystemExit where it was stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="+")
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--records", type=Path, help="Folder of recordings; default OUT/records.")
    parser.add_argument("--steps", type=int, default=400, help="Of each target that is trained.")
    parser.add_argument("--drafter-steps", type=int, default=400)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", action="append", choices=LAYERS, help="Repeatable.")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    records = options.records or options.out / "records"
    records.mkdir(parents=True, exist_ok=True)
    work = options.out.with_name(options.out.name + "-work")
    tokenizer = load_tokenizer(TINY / "target")
    config = TrainConfig(tuple(options.text), distil_tokens=20_000, blend=0.0, mixed=False)
    progress = Stopwatch(options.minutes)
    heldout = encode(tokenizer, (row["text"] for row in documents([options.heldout])))
    kept = records / "targets.json"
    about: dict = {"targets": json.loads(kept.read_text()) if kept.exists() else {}}
    try:
        with progress:
            tokens = encoded_text(config, tokenizer, work, progress)
            sizes = options.steps, options.drafter_steps
            job = Job(config, tokens, options.out, work, *sizes, progress)
            for name in options.only or LAYERS:
                target = train_target(job, name, LAYERS[name])
                if name == "middle":
                    own = replace(job, work=work / "middle")
                    about["drafters"] = train_drafters(own, {"sorted": True, "single": False})
                about["targets"][name] = {
                    "layers": LAYERS[name],
                    "steps": 0 if name == "middle" else job.steps,
                    "heldout_loss": heldout_loss(target, heldout),
                }
                for rule in RULES if name != "continued" else ():
                    record_target(job, name, target, rule, records)
    except Paused:
        raise SystemExit("stopped: the same call continues") from None
    replace_json(kept, about["targets"])
    for name, card in about.get("drafters", {}).items():
        replace_json(records / f"{name}.json", card)
    return about


if __name__ == "__main__":
    print(json.dumps(main()["targets"]))

"""The embedded target and a sorted drafter, each with and without training on GSM8K (S2D Table 5).

Usage: python tools/task_target.py TEXT... --task TEXT... --heldout FILE --prompts RECORDING \\
           --out models/s2d

TEXT and --out are as for `several_targets.py`, whose sorted drafter is trained here unless --out
has it. `tuned` is the embedded target after --steps more on those documents of --task that are
GSM8K's train split, `gsm8k` a sorted drafter that learned these alone. Both drafters are recorded
on both targets, after the prompts of a recording. Stopped, a second call continues.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from several_targets import (
    LAYERS,
    Job,
    heldout_loss,
    outputs,
    record_exits_along,
    train_drafters,
    train_target,
)
from train_ablations import Stopwatch

from real.drafters.sorted import SortedDrafter
from real.files import replace_json
from real.model.checkpoint import load_decoder, load_tokenizer
from real.model.stored_weights import made_for, weights_id
from real.pair import TINY
from real.train.config import TrainConfig
from real.train.corpus import documents, encode, encoded_text
from real.train.training_loop import Paused
from simspec.trace.trace import load_trace

SOURCE = "math/openai/grade-school-math:"
"""How the sources of the task's documents begin: the train split of GSM8K."""
TARGETS = {"vanilla": "middle", "tuned": "tuned"}
"""Folders of the targets; the first is the embedded one."""
DRAFTERS = {"text": "sorted", "gsm8k": "sorted-gsm8k"}
"""Folders of the sorted drafters, by what they learned."""
K = 3
"""Longest draft; three exits hold up to 3^K drafts a row."""


def texts(files: Sequence[Path | str], source: str) -> list[str]:
    """The documents whose source begins so; ValueError for none."""
    found = [row["text"] for row in documents(files) if row["source"].startswith(source)]
    if not found:
        names = ", ".join(map(str, files))
        raise ValueError(f"{names}: no document's source begins with {source}")
    return found


def main(arguments: Sequence[str] | None = None) -> dict:
    """Losses of the targets and cards of the drafters; SystemExit where it was stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="+")
    parser.add_argument("--task", nargs="+", required=True, help="Text that has GSM8K's.")
    parser.add_argument("--heldout", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--records", type=Path, help="Folder of recordings; default OUT/records.")
    parser.add_argument("--steps", type=int, default=400, help="Of the tuned target.")
    parser.add_argument("--drafter-steps", type=int, default=400)
    parser.add_argument("--source", default=SOURCE)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    records = options.records or options.out / "records"
    records.mkdir(parents=True, exist_ok=True)
    work = options.out.with_name(options.out.name + "-work")
    tokenizer, prompts = load_tokenizer(TINY / "target"), load_trace(options.prompts)
    config = TrainConfig(tuple(options.text), distil_tokens=20_000, blend=0.0, mixed=False)
    heldout = encode(tokenizer, texts([options.heldout], options.source))
    progress = Stopwatch(options.minutes)
    about: dict = {"targets": {}, "drafters": {}}
    try:
        with progress:
            everything = encoded_text(config, tokenizer, work, progress)
            own = encode(tokenizer, texts(options.task, options.source))
            sizes = options.steps, options.drafter_steps
            job = Job(config, own, options.out, work, *sizes, progress)
            targets = {
                name: train_target(job, folder, LAYERS["middle"])
                for name, folder in TARGETS.items()
            }
            for name, tokens in (("text", everything), ("gsm8k", own)):
                part = replace(job, tokens=tokens, work=work / "middle")
                about["drafters"] |= train_drafters(part, {DRAFTERS[name]: True})
            middle = load_decoder(options.out / "middle" / "target")
            hashes = made_for(options.out / "middle" / "target", middle, tokenizer)
            drafters = {
                learned: SortedDrafter.load(options.out / "middle" / folder, middle, hashes)
                for learned, folder in DRAFTERS.items()
            }
            for name, target in targets.items():
                about["targets"][name] = {
                    "layers": LAYERS["middle"],
                    "steps": 0 if name == "vanilla" else job.steps,
                    "heldout_loss": heldout_loss(target, heldout),
                }
                weights = weights_id(options.out / TARGETS[name] / "target")
                written = outputs(target, prompts, weights, K)
                for learned, drafter in drafters.items():
                    path = records / f"gsm8k-{name}-{learned}.parquet"
                    if not path.exists():
                        record_exits_along(target, drafter, written, path, progress)
    except Paused:
        raise SystemExit("stopped: the same call continues") from None
    replace_json(records / "gsm8k-targets.json", about["targets"])
    for folder, card in about["drafters"].items():
        replace_json(records / f"gsm8k-{folder}.json", card)
    return about


if __name__ == "__main__":
    try:
        print(json.dumps(main()["targets"]))
    except (OSError, ValueError) as error:
        raise SystemExit(f"task_target: {error}") from None

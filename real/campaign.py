"""The whole job on one machine: train, record, measure, run, pack. `make gpu` calls it; every stage can be resumed.

    python -m real.campaign --text corpus/ --prompts prompts.jsonl --out lab --minutes 12
    python -m real.campaign --toy --text notes.txt --prompts prompts.jsonl --out /tmp/toy --device cpu
"""

import json
import sys
import tarfile
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from real.features import offered
from real.files import replace_json, replacing
from real.jobs import RULES, measure_to, record_to, run_on
from real.lab import Lab, build, timed
from real.lab import toy as small
from real.lesson import TRAINED
from real.pair import Pair, load_pair
from real.prompts import draw, read_prompts
from real.record import Settings
from simspec import CostModel, load_trace, policies

STAGES = ("train", "record", "measure", "run", "pack")
DRAFTERS = (*TRAINED, "prompt_lookup")
OFFERS = {"medusa": 4, "hydra": 4}
"""Tokens that a drafter has to offer in a round, where that is fewer than any K: Medusa's and Hydra's heads."""
CHOSEN = ("fixed:0", "fixed:3", "beta_ts", "confidence:0.5")
GROWN = ("early_exit", "eagle", "medusa")
"""Drafters whose recordings hold the order of dynamic trees and beams, and whose costs price trees."""
TREES = ("static:2x1x1", "dynamic_tree:8")
LARGEST = 16_000_000
"""Bytes that a packed file may have."""


def campaign(
    text: Annotated[list[Path], typer.Option(help="Text to train on, repeatable.")],
    prompts: Annotated[list[Path], typer.Option(help="Prompts as JSON lines, repeatable.")],
    out: Annotated[Path, typer.Option(help="Everything goes here; call again to continue.")],
    heldout: Annotated[list[Path] | None, typer.Option(help="Held-out text, repeatable.")] = None,
    minutes: Annotated[float, typer.Option(help="Wall clock of training, all models together.")] = 12,
    device: Annotated[str, typer.Option(help="cuda, or cpu to try it.")] = "cuda",
    dtype: Annotated[str, typer.Option(help="Of recording and running.")] = "float32",
    stages: Annotated[str, typer.Option(help="Some of train,record,measure,run,pack.")] = ",".join(STAGES),
    per_task: Annotated[int, typer.Option(help="Prompts of every task.")] = 12,
    budget: Annotated[int, typer.Option(help="New tokens a prompt.")] = 96,
    k: Annotated[int, typer.Option("--depth", "-k", help="Draft depth K.")] = 16,
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
    toy: Annotated[bool, typer.Option(help="Minute sizes: the whole pipeline in seconds.")] = False,
) -> None:
    """Train a target and its drafters, record them under both rules, measure costs, run policies against their replays."""
    wanted = stages.split(",")
    if unknown := set(wanted) - set(STAGES):
        raise typer.BadParameter(f"stage {sorted(unknown)[0]!r} is unknown; expected some of {','.join(STAGES)}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter(f"device {device!r}: torch sees no CUDA device here; try --device cpu --toy")
    began = time.monotonic()

    def tell(remark: str, done: int, of: int, note: str = "") -> None:
        if done == of or done % max(1, of // 10) == 0:
            print(f"[{time.monotonic() - began:6.0f} s] {remark}: {done}/{of} {note}".rstrip(), flush=True)

    longest = 400
    if toy:
        # the toy's few tokens cut text finely: prompts are longer there
        per_task, budget, k, longest = min(per_task, 2), min(budget, 8), min(k, 4), 10 * longest
    if "train" in wanted:
        lab = Lab(tuple(map(str, text)), tuple(map(str, heldout or ())), device=device, seed=seed)
        # of the wall clock the target takes 40% and each drafter that learns 10%; a card wants larger steps
        lab = small(lab) if toy else timed(lab, 0.4 * minutes, 0.1 * minutes, 64 if device.startswith("cuda") else 8)
        build(lab, out / "models", out / "work", tell)
    repeats = 1 if toy else 4
    for drafter in DRAFTERS if set(wanted) & {"record", "measure", "run"} else ():
        pair = load_pair(out / "models", drafter, device, dtype)
        deepest = min(k, OFFERS.get(drafter, k))
        for rule_name, rule in RULES.items():
            stem = f"{'toy' if toy else 'lab'}-{drafter}-{rule_name}"
            trace, cost = out / "traces" / f"{stem}.parquet", out / "traces" / f"{stem}.cost.json"
            if "record" in wanted and not trace.exists():
                grown = (2 if toy else 8, min(2 if toy else 6, deepest)) if drafter in GROWN else ()
                asked = Settings(deepest, budget, rule, pair.end_tokens, offered(pair.drafter), grown)
                read = [p for path in prompts for p in read_prompts(path, pair.tokenizer, longest)]
                record_to(trace, pair, draw(read, per_task, seed), asked, tell)
            if "measure" in wanted and not cost.exists():
                rows = (8 if toy else 48) if drafter in GROWN else 0
                measure_to(cost, pair, rule, deepest, 128 if not toy else 8, repeats, seed, tell, rows)
            if "run" in wanted:
                run_stage(out / "runs" / f"{stem}.json", trace, cost, pair, seed, tell)
    if "pack" in wanted:
        try:
            print("packed " + ", ".join(f"{path} ({path.stat().st_size / 1e6:.1f} MB)" for path in pack(out)))
        except ValueError as error:
            print(error, file=sys.stderr)
            raise typer.Exit(1) from None


def run_stage(path: Path, trace: Path, cost: Path, pair: Pair, seed: int, tell) -> None:
    """Runs CHOSEN on a recording and writes how each compared with its replay; what is there already is kept."""
    done = json.loads(path.read_text()) if path.exists() else {}
    recorded, price = load_trace(trace), CostModel.from_json(cost)
    for text in CHOSEN + (TREES if recorded.order is not None else ()):
        reads = getattr(policies.parse(text), "reads", ())
        if text not in done and set(reads) <= {name for name, _ in recorded.meta.features}:  # prompt lookup shows none
            done[text] = run_on(recorded, pair, text, price, seed, tell).summary()
            replace_json(path, done)


def pack(out: Path) -> list[Path]:
    """Puts models, recordings with their costs, and run reports into a file each, to take home; the work folder stays.

    ValueError where one is larger than what may travel.
    """
    made = []
    for folder in (out / name for name in ("models", "traces", "runs") if (out / name).exists()):
        made.append(out / f"{folder.name}.tar")
        with replacing(made[-1]) as temporary, tarfile.open(temporary, "w") as tar:
            tar.add(folder, folder.name)
    if large := [path for path in made if path.stat().st_size > LARGEST]:
        raise ValueError(f"{large[0]} is larger than {LARGEST / 1e6:.0f} MB; record fewer prompts or less deep")
    return made


if __name__ == "__main__":
    typer.run(campaign)

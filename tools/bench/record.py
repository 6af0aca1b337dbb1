"""Tokens recorded a second, one sequence at a time against many, as one JSON:
python tools/bench/record.py [--models FOLDER] [--target FOLDER] [--drafter NAME ...]

Both ways record the same prompts in one run and take turns, the first to go changing from repeat to
repeat, so a slow minute of the machine falls on both. "single" writes each sequence through the
decode loop and records one drafter after another, each from its own sequences (`--batch 1`).
"batched" writes `--batch` sequences at a time, once for all drafters. Models are loaded and a first
sequence is recorded before the clock runs. Rates count recorded tokens of all drafters.

| key | meaning |
| --- | --- |
| single, batched | tokens/s of every repeat, with its seconds |
| ratio | batched / single: median of the ratios within repeats; `least` and `largest` of them |
| writing | the same for the target's sequences alone |
| near_ties, failures | sequences whose first difference is a near-tie, or is none |
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from real.audit.rounding import near_ties
from real.decode.features import drafter_features
from real.pair import TINY, load_pairs
from real.prompts import UNKNOWN_ORIGIN, Prompt, PromptFormat, load_chat_template, read_prompts
from real.record import RecordingFiles, Settings, record_all
from real.record.recorder import make_recording
from real.record.sequences import default_batch, target_sequences
from real.sampling import Rule


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", type=Path, default=TINY)
    parser.add_argument("--target", type=Path, help="a checkpoint in place of MODELS/target")
    parser.add_argument("--drafter", action="append", help="repeatable; default prompt_lookup")
    parser.add_argument("--prompts", type=Path, help="JSON lines; default: random tokens")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--prompt-length", type=int, default=64, help="of random prompts")
    parser.add_argument("--budget", type=int, default=32)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--batch", type=int, help="default: the device's")
    parser.add_argument("--rule", default="coupled", choices=("greedy", "coupled"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def prompts_of(options, pair) -> list[Prompt]:
    path = options.target or options.models / "target"
    if options.prompts:
        form = PromptFormat(pair.tokenizer, load_chat_template(path, "auto", ""))
        found, _ = read_prompts(options.prompts, form, 400)
        return found[: options.sequences]
    generator = torch.Generator().manual_seed(0)
    size = (options.sequences, options.prompt_length)
    tokens = torch.randint(0, pair.target.decoder.config.vocab, size, generator=generator)
    return [Prompt(str(i), "random", "random", row) for i, row in enumerate(tokens.tolist())]


def recordings(options, pairs, settings, prompts, folder) -> list:
    made = []
    for name, pair in pairs.items():
        own = replace(settings, features=drafter_features(pair.drafter))
        files = RecordingFiles(folder / f"{name}.parquet")
        made.append(make_recording(pair, own, prompts, files, UNKNOWN_ORIGIN))
    return made


def single(parts, prompts) -> list:
    return [record_all([part], prompts)[0] for part in parts]


def batched(parts, prompts) -> list:
    return record_all(parts, prompts)


def timed(work, *arguments) -> tuple[float, list]:
    start = time.perf_counter()
    result = work(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def ratios(rates: dict[str, list[dict]]) -> dict[str, float]:
    each = [
        many["tokens_per_s"] / one["tokens_per_s"]
        for one, many in zip(rates["single"], rates["batched"])
    ]
    return {"median": statistics.median(each), "least": min(each), "largest": max(each)}


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    names = options.drafter or ["prompt_lookup"]
    folders = {name: options.models / name for name in names}
    loaded = load_pairs(options.models, folders, options.device, target=options.target)
    pairs = dict(zip(names, loaded))
    target = loaded[0].target
    prompts = prompts_of(options, loaded[0])
    rule = Rule() if options.rule == "greedy" else Rule("coupled", 0.8, 0)
    one = Settings(options.depth, options.budget, rule, loaded[0].end_tokens, (), (), 1)
    settings = {
        "single": one,
        "batched": replace(one, batch=options.batch or default_batch(target)),
    }
    rates: dict[str, list[dict]] = {"single": [], "batched": []}
    writing: dict[str, list[dict]] = {"single": [], "batched": []}
    traces = {}
    for repeat in range(-1, options.repeats):
        order = list(settings) if repeat % 2 else list(settings)[::-1]
        chosen = prompts if repeat >= 0 else prompts[:1]  # a warm-up first
        for way in order:
            with tempfile.TemporaryDirectory() as folder:
                parts = recordings(options, pairs, settings[way], chosen, Path(folder))
                work = single if way == "single" else batched
                seconds, made = timed(work, parts, chosen)
            tokens = [p.token for p in chosen]
            written, sequences = timed(
                target_sequences, target, settings[way], tokens, range(len(tokens))
            )
            if repeat < 0:
                continue
            traces[way] = made
            for column, total, took in (
                (rates, sum(trace.rows for trace in made), seconds),
                (writing, sum(len(token) for token, _ in sequences), written),
            ):
                column[way].append({"tokens": total, "seconds": took, "tokens_per_s": total / took})
    compared = near_ties(traces["single"][0], traces["batched"][0])
    report = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "device": options.device,
        "target": loaded[0].name,
        "drafters": names,
        "rule": options.rule,
        "sequences": len(prompts),
        "budget": options.budget,
        "depth": options.depth,
        "batch": settings["batched"].batch,
        **rates,
        "ratio": ratios(rates),
        "writing": writing | {"ratio": ratios(writing)},
        "near_ties": len(compared.near_ties),
        "failures": len(compared.failures),
    }
    text = json.dumps(report, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

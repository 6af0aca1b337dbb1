"""Our plain step beside those of the released engines, in turn on the same prompts, as one JSON:

    python tools/bench/plain_step.py --models models/smollm2 --json plain_step.json

Every repeat runs every prompt on every contestant, in random order. A step is the mean time of a
token after the first: seconds from the first token to the last, over the tokens between. Ratios
are over ours on engine `eager`, with intervals over prompts. Nothing else may run.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from real.commands.engine_options import SMOLLM2, adapter_of, engine_settings, prompt_choice
from real.decode.engine import make_passes
from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.draft import Silent
from real.engines import Worker, find_environment
from real.engines.messages import Request
from real.files import replace_json
from real.pair import load_pair
from real.provenance import device_name, versions
from real.sampling import Rule
from simspec import CostModel, load_trace, policies
from simspec.numerics.stats import replicated
from simspec.trace.recordings import locate

OURS = ("eager",)
SECONDS = Callable[[Request], float]


def our_step(models: Path, engine: str) -> SECONDS:
    """Seconds of a plain step of our decode loop on this engine, for a request."""
    passes = make_passes(engine, 1, 4096)
    pair = load_pair(models, "prompt_lookup", passes=passes)
    plan = chain_plan(policies.fixed(0), 1, 0, CostModel.from_ratio(0.1, 1))

    def seconds(request: Request) -> float:
        done = decode(
            pair.target, Silent(), plan, Rule(), list(request.prompt), request.max_tokens,
            pair.end_tokens,
        )  # fmt: skip
        return float(done.seconds[1:].sum()) / max(1, len(done.token) - 1)

    return seconds


def engine_step(worker: Worker, sets_k: bool) -> SECONDS:
    """Seconds of a plain step of an engine's worker, for a request."""

    def seconds(request: Request) -> float:
        found: list = []
        worker.run([request], found.append, 1, 0 if sets_k else None)
        (done,) = found
        return (done.seconds - done.first_seconds) / max(1, len(done.tokens) - 1)

    return seconds


def main() -> None:
    """Time all contestants, print a line for each, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--engine", action="append", help="default: vllm and transformers")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--budget", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    (path,) = locate([SMOLLM2]).values()
    requests = prompt_choice(given.prompts, "1/2", given.budget, 1).of(load_trace(path))
    contestants = {f"simspec {engine}": our_step(given.models, engine) for engine in OURS}
    workers: list[Worker] = []
    released: dict[str, str] = {}
    for name in given.engine or ["vllm", "transformers"]:
        settings = engine_settings(given.models / "target", "none", 0, 1, "float32", False, 1)
        adapter = adapter_of(name, settings)
        worker = Worker(adapter, find_environment(adapter))
        workers.append(worker)
        ready = worker.start(settings)
        released[name] = ready.version
        contestants[name] = engine_step(worker, ready.sets_k)
    rng = np.random.default_rng(0)
    rows: dict[str, list[list[float]]] = {name: [] for name in contestants}
    try:
        for repeat in range(given.repeats + 1):  # the first warms up
            seconds = {name: [0.0] * len(requests) for name in contestants}
            chosen = range(len(requests)) if repeat else range(2)
            for i in chosen:
                for name in rng.permutation(list(contestants)).tolist():
                    seconds[name][i] = contestants[name](requests[i])
            if repeat:
                for name, row in seconds.items():
                    rows[name].append(row)
    finally:
        for worker in workers:
            worker.close()
    about = {"device": device_name("cpu"), "threads": 1, "engines": released}
    replace_json(given.json, {**about, "versions": versions(), "seconds": rows})
    report(rows)


def report(rows: dict[str, list[list[float]]]) -> None:
    """A line for each contestant: milliseconds of each repeat, and the ratio over ours."""
    ours = np.array(rows["simspec eager"])
    for name, given in rows.items():
        times = np.array(given)
        ratio = ours.mean(0) / times.mean(0)
        found = replicated(ratio)
        repeats = ", ".join(f"{1000 * statistics.fmean(row):.1f}" for row in given)
        print(f"{name}: {repeats} ms a repeat; ours over it {found.text('.3f')}")


if __name__ == "__main__":
    main()

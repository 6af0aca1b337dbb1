"""An engine under load against the simulation of it:

    python tools/bench/served_load.py --model models/smollm2/target --cost vllm.cost.json \\
        --rate 0.5 --rate 1 --rate 2 -k 0 -k 3 --slots 4 --out load.jsonl

Poisson requests reach vLLM in a worker process at their times; each draft length gets the same. The
cost is of `simspec engine measure vllm --concurrent 1 --concurrent 2 --concurrent 4`, the last at
least --slots; its rows of batch 1 price the prompts. Nothing else may run. A file that exists is
compared, not recorded again. The last columns: seconds of the run's passes over these costs, and
the error of the simulation with the run's own seconds.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from real.commands.engine_options import SMOLLM2, adapter_of, engine_settings, prompt_choice
from real.engines import Worker, find_environment
from real.engines.adapter import draft_description
from real.engines.load import (
    predicted_both,
    predicted_table,
    read_loaded,
    run_load,
    with_prompts,
    write_loaded,
)
from real.engines.rows import read_rows
from simspec import load_trace
from simspec.cost.table import CostTable, load_cost
from simspec.replay.load import Server
from simspec.trace.recordings import locate


def record(given) -> None:
    """Runs the engine and keeps every request."""
    ks = sorted({0, *given.k})
    settings = engine_settings(
        given.model, "ngram:1,3", max(ks), given.threads, given.dtype, True, given.slots
    )
    adapter = adapter_of("vllm", settings)
    (path,) = locate([given.recording]).values()
    prompts = prompt_choice(given.prompts, given.part, given.budget, 1).of(load_trace(path))
    longest = max(len(p.prompt) + p.max_tokens for p in prompts) + 2 * max(ks) + 2
    worker = Worker(adapter, find_environment(adapter))
    try:
        ready = worker.start(replace(settings, longest=longest))
        about = {
            "engine": ready.engine, "version": ready.version, "device": ready.device,
            "draft": draft_description(settings.draft), "slots": given.slots, "seed": given.seed,
            "requests": given.requests,
        }  # fmt: skip
        rows = run_load(
            worker.run, prompts, given.rate, ks, given.requests, given.slots, given.seed
        )
        write_loaded(given.out, about, rows)
    finally:
        worker.close()


def main() -> None:
    """Record where there is no file yet, then print predicted and measured figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--cost", required=True)
    parser.add_argument("--rate", type=float, action="append", required=True)
    parser.add_argument("-k", type=int, action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=2048, help="of a step, as vLLM's worker has")
    parser.add_argument("--requests", type=int, default=60, help="of each run")
    parser.add_argument("--recording", default=SMOLLM2)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--part", default="2/2")
    parser.add_argument("--budget", type=int, default=96)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    table, (_, alone) = load_cost(given.cost), read_rows(Path(f"{given.cost}.b1.rows.jsonl"))
    if not isinstance(table, CostTable):
        raise SystemExit(
            f"{given.cost} holds one batch size: measure --concurrent 1 and {given.slots}"
        )
    alone = [row for row in alone if not row.k]
    _, (fixed, token) = with_prompts(table, alone, given.tokens)
    print(f"a prompt takes {1000 * fixed:.1f} ms and {1000 * token:.3f} ms a token")
    if not given.out.exists():
        record(given)
    about, rows = read_loaded(given.out)
    server = Server(about["slots"], given.tokens)
    predicted_table(predicted_both(about, rows, table, alone, server)).print()


if __name__ == "__main__":
    main()

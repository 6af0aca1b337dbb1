"""Seconds of whole sweeps, from the start of the process: python tools/bench/sweep.py runs the one
of all bundled recordings.
"""

import json
import statistics
import subprocess
import sys
import time
from itertools import chain, cycle, islice
from pathlib import Path

TRACES = Path(__file__).parents[2] / "traces"
RULES = "greedy", "coupled", "rejection"
TOKENS, REPLICATES = 476_000, 8
TEN = (
    "fixed:1", "fixed:2", "fixed:4", "hf_heuristic", "beta_ts", "cost_ts", "cali_ts",
    "confidence:0.5", "product", "oracle",
)  # fmt: skip
FAMILIES = (
    ("fixed:", range(16)),
    ("beta_ts:acceptance,alpha0=", range(2, 18)),
    ("beta_ts:censored,alpha0=", range(2, 18)),
    ("confidence:0.", range(10, 26)),
    ("entropy:0.", range(20, 36)),
    ("product:0.", range(30, 46)),
    ("hf_heuristic:", range(1, 17)),
)
FOUR = [
    f"tiny-{drafter}-{rule}"
    for drafter in ("early_exit", "model")
    for rule in ("coupled", "greedy")
]


def timed(small: bool) -> dict:
    """Seconds to the first result and to the end of two sweeps, and of `import numba` alone."""
    numba = [_seconds([sys.executable, "-c", "import numba"]) for _ in range(2 if small else 6)]
    return {
        **started(small),
        "import_numba_s": round(statistics.median(numba[1:]), 3),
        "bundled": bundled(small),
    }


def started(small: bool) -> dict:
    """`simspec sweep` of 7 families x 16 settings on four bundled recordings."""
    names = [
        f"{head}{value}"
        for head, values in FAMILIES
        for value in list(values)[: 1 if small else None]
    ]
    policies = [f"--policy={name}" for name in names]
    recordings = FOUR[-1:] if small else FOUR
    command = [sys.executable, "-m", "simspec.cli", "sweep", *recordings, "--json", *policies]
    times = []
    for _ in range(2 if small else 6):  # the first call may compile
        begin = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        times.append(time.perf_counter() - begin)
    results = len(json.loads(done.stdout)["rows"])
    return {
        "policies": len(names),
        "results": results,
        "all_s": round(statistics.median(times[1:]), 3),
    }


def bundled(small: bool) -> dict:
    """All bundled recordings with costs, one more time from the first on up to TOKENS,
    under ten policies with eight draws: seconds of the process on one thread, median of runs.
    """
    command = [sys.executable, __file__, *(["--small"] if small else [])]
    times, printed = [], ""
    for _ in range(2 if small else 4):  # the first call may compile
        begin = time.perf_counter()
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        times.append(time.perf_counter() - begin)
    figures = json.loads(printed)
    whole = statistics.median(times[1:])
    return figures | {"s": round(whole, 3), "ns_per_token": whole * 1e9 / figures["simulated"]}


def _seconds(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - begin


def priced() -> list[tuple[Path, Path]]:
    """The bundled recordings that have costs, with these."""
    from simspec.trace.recordings import cost_beside

    recorded = (TRACES.glob(f"smollm2/{rule}/*.parquet") for rule in RULES)
    files = sorted([*TRACES.glob("*.parquet"), *chain.from_iterable(recorded)])
    return [(file, cost) for file in files if (cost := cost_beside(file)) is not None]


def main() -> None:
    """The sweep of `bundled`; prints tokens of the recordings and tokens simulated."""
    from simspec.cost.table import load_cost
    from simspec.replay.sweep import supported_policies, sweep_rows
    from simspec.trace.trace import load_trace

    small = "--small" in sys.argv
    traces, costs, tokens = {}, {}, 0
    for i, (file, cost) in islice(enumerate(cycle(priced())), 1 if small else None):
        trace = load_trace(file)
        traces[f"{file.stem}#{i}"], tokens = trace, tokens + trace.rows
        costs[f"{file.stem}#{i}"] = load_cost(cost)
        if tokens >= TOKENS:
            break
    served, _ = supported_policies(traces, TEN, costs, all_used=False)
    simulated, rows = 0, 0
    for name, policies in served.items():
        part = {name: traces[name]}
        for row in sweep_rows(part, policies, {name: costs[name]}, 1 if small else REPLICATES):
            rows, simulated = rows + 1, simulated + row["tokens"]
    print(
        json.dumps(
            {"tokens": tokens, "recordings": len(traces), "rows": rows, "simulated": simulated}
        )
    )


if __name__ == "__main__":
    main()

"""Speed of the simulator: nanoseconds of a simulated round, and seconds of a sweep, as one JSON.

    python tools/bench.py [--rows 200000] [--repeats 5]

A round is one of `replay` on independent drafts of 16 tokens, compiled before; medians.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

from simspec import CostModel, replay, sweep, synthetic
from simspec.policies import make

K = 16
POLICIES = "fixed:4", "beta_ts", "cost_ts", "goodput", "ucb", "exp3"


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    """Median wall-clock time of `run`, after one call that does not count."""
    run()
    spent = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        spent.append(time.perf_counter() - begin)
    return statistics.median(spent)


def main(arguments: list[str] | None = None) -> dict:
    """Measures, prints and returns the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args(arguments)
    cost = CostModel.from_ratio(0.1, K)
    trace = synthetic.iid(0.7, max(1, given.rows // 1000), min(given.rows, 1000), K, seed=1)
    rounds = {}
    for name in POLICIES:
        policy = make(name, trace, cost)
        count = len(replay(trace, policy, cost=cost))
        seconds = median_seconds(lambda p=policy: replay(trace, p, cost=cost), given.repeats)
        rounds[name] = round(1e9 * seconds / count, 1)
    several = lambda: sweep(trace, POLICIES, cost, replicates=4, progress=False)  # noqa: E731
    found = {
        "nanoseconds_a_round": rounds,
        "sweep_seconds": round(median_seconds(several, given.repeats), 3),
        "rows": trace.rows,
        "machine": f"{platform.machine()}, numpy {np.__version__}",
    }
    print(json.dumps(found, indent=1))
    return found


if __name__ == "__main__":
    main()

"""Replays by this checkout's package and by an earlier revision's, in turn, as one JSON:
python tools/bench/revision.py a6084b4~1 [--repetitions 5]

All bundled greedy and coupled recordings, ten policies, eight draws of the random ones, at c = 0.1
on one thread.
Every package runs in a process of its own and compiles before the clock starts; the two take turns,
so that a slow minute of the machine falls on both. `times` is the median of ratios within turns.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
POLICIES = (
    "fixed:1", "fixed:2", "fixed:4", "hf_heuristic", "beta_ts", "cost_ts", "cali_ts",
    "confidence:0.5", "product", "oracle",
)  # fmt: skip
DRAWS = 8


def replay_all(small: bool) -> dict:
    """{policy: [seconds, rounds]} of the package that is imported here."""
    from simspec import CostModel, PolicyError, TraceError, load_trace, replay
    from simspec.policies import parse

    files = [p for p in sorted(ROOT.glob("traces/tiny-*.parquet")) if "rejection" not in p.name]
    files += sorted(ROOT.glob("traces/smollm2/[gc]*/*.parquet"))
    found: dict[str, list[float]] = {}
    traces = [load_trace(path) for path in (files[:2] if small else files)]
    for name in POLICIES:
        jobs = []
        for trace in traces:
            cost = CostModel.from_ratio(0.1, trace.K)  # files of costs gain keys
            policy = parse(name).resolve(trace, cost)
            try:
                replay(trace, policy, 0, cost)
            except (TraceError, PolicyError):  # it reads what was not recorded
                continue
            jobs += [(trace, policy, i, cost) for i in range(DRAWS if policy.random else 1)]
        begin, rounds = time.perf_counter(), 0
        for job in jobs:
            rounds += len(replay(*job))
        found[name] = [time.perf_counter() - begin, rounds]
    return found


def measured(package: Path, small: bool) -> dict:
    """`replay_all` in a process that imports the package from this folder."""
    environment = os.environ | {"PYTHONPATH": str(package), "PYTHONSAFEPATH": "1"}
    environment |= {"NUMBA_CACHE_DIR": str(package / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--replay", *(["--small"] if small else [])]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def report(before: list[dict], now: list[dict]) -> dict:
    """Nanoseconds of a round, and how many times as fast it is now, by policy and in all."""
    rows = {}
    for name in now[0]:
        times = [b[name][0] / n[name][0] for b, n in zip(before, now) if n[name][1]]
        ns = [statistics.median(1e9 * r[name][0] / max(r[name][1], 1) for r in of)
              for of in (before, now)]  # fmt: skip
        rows[name] = {
            "before_ns": round(ns[0], 1), "now_ns": round(ns[1], 1),
            "times": round(statistics.median(times), 2) if times else None,
        }  # fmt: skip
    totals = [[sum(s for s, _ in run.values()) for run in of] for of in (before, now)]
    times = statistics.median(b / n for b, n in zip(*totals))
    before_s, now_s = (round(statistics.median(of), 3) for of in totals)
    return {"policies": rows, "before_s": before_s, "now_s": now_s, "times": round(times, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", nargs="?", help="of git, with simspec/")
    parser.add_argument("--repetitions", type=int, default=5, help="turns of each package")
    parser.add_argument("--small", action="store_true", help="two recordings, to see that it runs")
    parser.add_argument("--replay", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replay:
        print(json.dumps(replay_all(options.small)))
        return
    if options.revision is None:
        parser.error("name a revision, such as HEAD~20")
    with tempfile.TemporaryDirectory() as folder:
        packages = {"before": options.revision, "now": "HEAD"}
        for name, revision in packages.items():
            archive = subprocess.run(
                ["git", "archive", revision, "simspec"], cwd=ROOT, capture_output=True, check=True
            ).stdout
            with tarfile.open(fileobj=io.BytesIO(archive)) as files:
                files.extractall(Path(folder) / name, filter="data")
        runs: dict[str, list[dict]] = {name: [] for name in packages}
        for _ in range(options.repetitions):
            for name in packages:
                runs[name].append(measured(Path(folder) / name, options.small))
    print(json.dumps(report(runs["before"], runs["now"]), indent=1))


if __name__ == "__main__":
    main()

"""Digests of replays: python tools/replay_digests.py [--write] [RECORDING ...]

For each bundled recording and each policy below, one SHA-256 over the rounds and their seconds.
Compared with tests/goldens/replay_digests.json, which commit 27e8c13e wrote: equal
digests say that replays are the same, bit for bit. A policy that a recording lacks the features for
has none.
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np

import simspec
from simspec.replay.batches import batch_replay

ROOT = Path(__file__).parents[1]
FROZEN = ROOT / "tests" / "goldens" / "replay_digests.json"
CHAINS = (
    "adaedl", "beta_ts:acceptance", "beta_ts:censored", "beta_ts:printed",
    "beta_ts:printed_with_correction", "beta_ts:scope=stream,alpha0=2,beta0=0.5",
    "cali_ts:draft_share", "cali_ts:draft_share,side=sampling",
    "cali_ts:literal,predictor=confidence", "cali_ts:side=model,predictor=confidence",
    "cali_ts:validated",
    "cali_ts:validated,predictor=scalar/0.2/0.6/-0.3/0.1,sigma_m=0.2,sigma_s=0.7,theta0=0.8,scope=stream",
    "confidence:0.5", "confidence:0.7,inclusive=false", "cost_ts",
    "cost_ts:depth,decay=0.75,scope=stream", "cost_ts:greedy=true", "ema_tiers",
    "ema_tiers:weight=0.9,interval=2,warmup=0,scope=sequence,ceiling=1.5,lag=true", "entropy",
    "entropy:2,inclusive=false", "exp3", "exp3:0/2/5,2,scope=stream", "fixed:0", "fixed:1",
    "fixed:3", "goodput:released,window=2,shortest=1,scope=sequence", "goodput:window=2",
    "greedy_oracle", "hf_heuristic", "hf_heuristic:3,transient=true", "oracle", "product",
    "product:0.8,inclusive=false", "specdec_pp",
    "specdec_pp:0.5,predictor=confidence,variant=released", "two_thresholds:attempts=4", "ucb",
    "ucb:released,0/1/3,scope=stream",
)  # fmt: skip
TREES = (
    "cape", "cape:2", "cape:appendix,k=3", "dynamic_tree:4", "dynamic_tree:beams", "optimal_tree",
    "optimal_tree:4", "optimal_tree:4,full", "optimal_tree:4,medusa", "static:2x1",
    "static:eagle-25", "tree_oracle",
)  # fmt: skip
BATCHES = ("adaptive_verification:interval=2",)


def digest(trace: simspec.Trace, text: str) -> str | None:
    """SHA-256 of a policy's rounds at a draft step of a tenth; None where it cannot be replayed."""
    cost = simspec.CostModel.from_ratio(0.1, trace.K)
    found = hashlib.sha256()
    try:
        batch_policy = simspec.policies.parse_batch(text)
        policy = batch_policy or simspec.policies.make(text, trace, cost)
        if batch_policy:
            rounds = batch_replay(trace, batch_policy, cost, 4).rounds
        elif isinstance(policy, simspec.TreePolicy):
            rounds = simspec.replay_tree(trace, policy)
        else:
            rounds = simspec.replay(trace, policy, 3, cost)
            found.update(cost.seconds(rounds).tobytes())
    except (ValueError, simspec.TraceError):  # a feature or rank is not recorded
        return None
    for part in rounds if isinstance(rounds, tuple) else (rounds,):
        for name in ("offset", "row", "computed", "drafted", "accepted"):
            if hasattr(part, name):
                values = np.ascontiguousarray(getattr(part, name)).astype(np.int64)
                found.update(values.tobytes())
    return found.hexdigest()[:16]


def digests(path: Path) -> dict[str, str]:
    """The digest of each policy that the recording can be replayed with."""
    trace = simspec.load_trace(path)
    found = {text: digest(trace, text) for text in (*CHAINS, *TREES, *BATCHES)}
    return {text: value for text, value in found.items() if value}


def main() -> None:
    """Compares, or writes with --write; exit code 1 where a replay differs or is gone."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("recordings", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    paths = [
        path.resolve()
        for path in options.recordings or sorted((ROOT / "traces").rglob("*.parquet"))
        if ".exits" not in path.name
    ]
    found = {str(path.relative_to(ROOT)): digests(path) for path in paths}
    if options.write:
        FROZEN.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
        return
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    differ = [
        f"{name} {text}"
        for name, values in found.items()
        for text, value in frozen.get(name, {}).items()
        if values.get(text) != value
    ]
    print(f"{sum(map(len, found.values()))} replays of {len(found)} recordings", end=", ")
    print(f"{len(differ)} differ from {FROZEN.name}", *differ, sep="\n")
    raise SystemExit(bool(differ))


if __name__ == "__main__":
    main()

"""Digests of replays of all bundled recordings: python tools/replay_digests.py [TRACES] [--json]

For each recording one SHA-256 over the rounds and seconds of every policy below that it has the
features for, chains and trees. Equal digests before and after a change say that replays are the
same, bit for bit. It imports what is public alone, so that it runs on older checkouts too.
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np

import simspec

CHAINS = (
    "fixed:0", "fixed:1", "fixed:3", "beta_ts:acceptance", "beta_ts:censored", "beta_ts:printed",
    "beta_ts:printed_with_correction", "cali_ts:draft_share", "cali_ts:validated",
    "cali_ts:literal,predictor=confidence", "model_only:confidence", "sampling_only", "cost_ts",
    "cost_ts:depth,decay=0.75,scope=stream", "cost_ts:greedy=true", "confidence:0.5",
    "confidence:0.7,inclusive=false", "entropy", "product", "specdec_pp", "draft_verify",
    "adaedl", "hf_heuristic", "adaptive_confidence:samples=1", "ema_tiers", "throughput_aware:1/2",
    "goodput:window=2", "kill_switch:2,window=4", "in_a_row:2", "ucb", "exp3", "tapout",
    "greedy_oracle", "oracle",
)  # fmt: skip
TREES = ("static:2x1", "optimal_tree:4", "medusa_tree:4", "cape", "sets:2", "dynamic_tree:4")


def digest(trace: simspec.Trace) -> tuple[str, int]:
    """(SHA-256, policies replayed) of a recording, at a draft step of a tenth."""
    cost = simspec.CostModel.from_ratio(0.1, trace.K)
    found, count = hashlib.sha256(), 0
    for text in (*CHAINS, *TREES):
        try:
            policy = simspec.policies.make(text, trace, cost)
            tree = isinstance(policy, simspec.TreePolicy)
            rounds = (
                simspec.replay_tree(trace, policy)
                if tree
                else simspec.replay(trace, policy, 3, cost)
            )
        except (ValueError, simspec.TraceError):  # a feature or rank is not recorded
            continue
        rounds = rounds[0] if isinstance(rounds, tuple) else rounds
        found.update(text.encode())
        for name in ("offset", "row", "computed", "drafted", "accepted"):
            found.update(np.ascontiguousarray(getattr(rounds, name)).astype(np.int64).tobytes())
        if not tree:
            found.update(cost.seconds(rounds).tobytes())
        count += 1
    return found.hexdigest(), count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "traces", nargs="?", type=Path, default=Path(__file__).parents[1] / "traces"
    )
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    rows = {
        str(path.relative_to(options.traces)): digest(simspec.load_trace(path))
        for path in sorted(options.traces.rglob("*.parquet"))
        if ".exits" not in path.name
    }
    if options.as_json:
        print(json.dumps(rows))
    else:
        for name, (value, count) in rows.items():
            print(f"{value[:16]} {count:3} {name}")


if __name__ == "__main__":
    main()

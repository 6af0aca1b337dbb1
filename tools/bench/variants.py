"""Variants of one drafter on equal sequences: draft vocabularies, int8 weights; as one JSON:
python tools/bench/variants.py BASE.parquet OTHER.parquet ... [--depth K] [--out FILE.json]

The recordings are of one rule and of the same prompts, which the target continued alike. Costs are
read beside each, NAME.cost.json, where they are.

| key | meaning |
| --- | --- |
| accepted | mean accepted length of a draft of K tokens from every position, 95% over prompts |
| less | BASE's less this one's, paired by prompt |
| step | a token of the longest draft priced, in plain steps of the same sitting |
| best_k, speedup | the best fixed length by replay, its drafts at this price, all else at BASE's: |
| | the target is the same |
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from real.files import replace_json
from simspec import CostModel, Trace, load_trace, policies, replay
from simspec.numerics.stats import Estimate, ratio, ratio_difference


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("recording", nargs="+", type=Path)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def sums(trace: Trace, K: int) -> tuple[np.ndarray, np.ndarray]:
    """Accepted tokens of drafts of K, and the drafts, by prompt; drafts cut by the end are none."""
    accepted, drafts = [], []
    for first, end in zip(trace.offset, trace.offset[1:]):
        run = np.minimum(trace.run[first : max(first, end - K)], K)
        accepted.append(run.sum())
        drafts.append(len(run))
    return np.array(accepted, float), np.array(drafts, float)


def bounds(value: Estimate) -> list[float]:
    return [round(x, 4) for x in (value.value, value.low, value.high)]


def priced(trace: Trace, path: Path, base: Path) -> dict:
    """Draft step and best fixed length at the costs beside both recordings; {} without them."""
    files = path.with_suffix(".cost.json"), base.with_suffix(".cost.json")
    if not all(file.exists() for file in files):
        return {}
    own, first = map(CostModel.from_json, files)
    scale = first.baseline / own.baseline
    cost = replace(first, draft=own.draft * scale, catch_up=own.catch_up * scale, precision=None)
    speedups = []
    for k in range(min(trace.K, cost.K) + 1):
        rounds = replay(trace, policies.parse(f"fixed:{k}"), cost=cost)
        speedups.append(trace.rows * cost.baseline / cost.seconds(rounds).sum())
    best = int(np.argmax(speedups))
    step = own.draft[-1] / own.K / own.baseline
    return {"step": round(step, 4), "best_k": best, "speedup": round(speedups[best], 4)}


def main() -> None:
    options = parse()
    traces = [load_trace(path) for path in options.recording]
    base = sums(traces[0], options.depth)
    rows = []
    for path, trace in zip(options.recording, traces):
        if not np.array_equal(trace.token, traces[0].token):
            raise SystemExit(f"{path} holds other tokens than {options.recording[0]}")
        own = sums(trace, options.depth)
        rows.append(
            {
                "recording": str(path),
                "prompts": trace.sequences,
                "accepted": bounds(ratio(*own)),
                "less": bounds(ratio_difference(*base, *own)),
                **priced(trace, path, options.recording[0]),
            }
        )
    report = {"depth": options.depth, "rule": traces[0].meta.rule, "rows": rows}
    print(json.dumps(report, indent=1))
    if options.out:
        replace_json(options.out, report)


if __name__ == "__main__":
    main()

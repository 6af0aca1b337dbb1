"""Passes of a target of 1 to 32 rows in three ways, as one JSON:
python tools/bench/prepacked.py [--target FOLDER] [--threads N]

`plain`: torch's layout as it is; `tuned`: the fastest way in that layout; `prepacked`: the fastest
in both. All pass the same rows behind the same context in turns, so a slow minute of the machine
falls on all. Seconds are medians; `slower` is a pass of so many rows over one of a single row;
`falls` lists pairs of rows of which the wider pass is faster beyond noise (`simspec measure`).
"""

import argparse
import copy
import itertools
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from real.measure.estimate import FASTER, SURE
from real.model.checkpoint import load_decoder
from real.model.prepacked import PACKED, PLAIN, tune, ways_of
from real.model.target import Target
from real.pair import TINY

ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32)


def falls(seconds: dict[int, list[float]]) -> list[str]:
    """Pairs whose wider pass is faster, by the mean over repeats of their difference in time."""
    plain, found = statistics.median(seconds[1]), []
    for narrow, wide in itertools.combinations(ROWS, 2):
        gap = (np.array(seconds[narrow]) - seconds[wide]) / plain
        error = gap.std(ddof=1) / len(gap) ** 0.5
        if gap.mean() > max(FASTER, SURE * error):
            found.append(f"{wide} rows faster than {narrow} by {gap.mean():.0%} of a plain step")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--target", type=Path, default=TINY / "target")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plain = load_decoder(options.target)
    tuned, packed = copy.deepcopy(plain), copy.deepcopy(plain)
    tune(tuned, (PLAIN,))
    tune(packed, (PLAIN, PACKED))
    targets = {"plain": Target(plain), "tuned": Target(tuned), "prepacked": Target(packed)}
    for target in targets.values():
        target.prefill(list(range(1, options.context + 2)))
    seconds: dict = {name: {rows: [] for rows in ROWS} for name in targets}
    for repeat in range(options.repeats + 1):  # the first is a warm-up
        for rows in ROWS:
            for name, target in list(targets.items())[:: 1 if repeat % 2 else -1]:
                start = time.perf_counter()
                target.verify([1] * rows, [*range(-1, rows - 1)])
                if repeat:
                    seconds[name][rows].append(time.perf_counter() - start)
    median = {k: {n: statistics.median(v) for n, v in each.items()} for k, each in seconds.items()}
    print(
        json.dumps(
            {
                "threads": torch.get_num_threads(),
                "seconds": median,
                "slower": {
                    k: {n: v / each[1] for n, v in each.items()} for k, each in median.items()
                },
                "falls": {name: falls(each) for name, each in seconds.items()},
                "ways": {"tuned": dict(ways_of([tuned])), "prepacked": dict(ways_of([packed]))},
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()

"""Coverage of intervals of measured costs: python tools/bench/measured_coverage.py

Each sitting measures known costs on a simulated timer. Printed as one JSON: the share of 95%
intervals that hold them, their mean half-width, and the bias, by machine and timing blocks.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from noisy_machine import NoisyMachine, timed_rounds

from real.measure.estimate import Priced, draw_blocks, replicate_costs, timed_cost, with_replicates

VERIFY, DRAFT = (1.0, 1.2, 1.5), (0.3, 0.55)
MACHINES = {
    "idle": {"drift": 0.0, "burst": 0.0, "steal": 0.0},
    "drift": {"burst": 0.0, "steal": 0.0},
    "drift, bursts, steal": {},
}


def sitting(seed: int, blocks: int, draws: int, machine: dict) -> tuple[np.ndarray, np.ndarray]:
    """(costs over the known ones, half-widths) of one sitting."""
    noisy = NoisyMachine(np.random.default_rng(seed), **machine)
    target, own = timed_rounds(noisy, VERIFY, DRAFT, blocks)
    priced = Priced(len(DRAFT), 0, False, False)
    cost = timed_cost(target, own, priced)
    drawn = draw_blocks(len(target.pace.blocks), seed, draws)
    cost = with_replicates(cost, replicate_costs(target, own, priced, cost, drawn))
    known = np.array([*VERIFY[1:], *DRAFT])
    widths = cost.precision.half_width
    found = np.array([*cost.verify[1:], *cost.draft[1:]]) / cost.baseline
    half = np.array([*widths["verify"][1:], *widths["draft"][1:]]) / cost.baseline
    return found / known, half / known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sittings", type=int, default=300)
    parser.add_argument("--blocks", type=int, nargs="+", default=[24, 60])
    parser.add_argument("--draws", type=int, default=100)
    options = parser.parse_args()
    rows = []
    for name, machine in MACHINES.items():
        for blocks in options.blocks:
            made = [sitting(s, blocks, options.draws, machine) for s in range(options.sittings)]
            found, half = (np.array(part) for part in zip(*made))
            held = np.abs(found - 1) <= half
            rows.append(
                {
                    "machine": name,
                    "blocks": blocks,
                    "coverage": round(float(held.mean()), 4),
                    "by cost": held.mean(0).round(3).tolist(),
                    "half-width": round(float(half.mean()), 4),
                    "bias": (found.mean(0) - 1).round(4).tolist(),
                }
            )
            print(json.dumps(rows[-1]), file=sys.stderr)
    print(json.dumps({"sittings": options.sittings, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()

"""Recordings that tables of the papers need beside the bundled ones: `make paper-recordings`.

Along the outputs of the bundled recordings of the embedded models: drafts of 10 tokens, where those
are shorter, and GLIDE's beam searches of width 4 and 8. They hold lengths, orders and beams alone.
"""

import sys
from pathlib import Path

import torch
from ablation_data import record_along

from real.pair import TINY, load_pair
from simspec.trace.trace import load_trace

ROOT = Path(__file__).parent.parent
BOTH, COUPLED = ("coupled", "greedy"), ("coupled",)
RECORDED = {
    "self_skip-k10": ("self_skip", 10, (), BOTH),
    "eagle-k10": ("eagle", 10, (), BOTH),
    "glide-k10": ("glide", 10, (), BOTH),
    "glide-beam4": ("glide", 5, (4, 5), COUPLED),
    "glide-beam8": ("glide", 5, (8, 5), COUPLED),
}
"""{name: (drafter, K, (width, levels) of its trees, rules)}; greedy outputs repeat themselves."""


def main(folder: Path = ROOT / "traces" / "papers") -> None:
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for name, (drafter, K, tree, rules) in RECORDED.items():
        pair = load_pair(TINY, drafter)
        for rule in rules:
            path = folder / f"{name}-{rule}.parquet"
            if path.exists():
                continue
            bundled = load_trace(ROOT / "traces" / f"tiny-{drafter}-{rule}.parquet")
            record_along(pair.target.decoder, pair.drafter, bundled, K, tree=tree).save(
                path, small=True
            )
            print(path.name, path.stat().st_size, "bytes", flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

"""Rounds of an early exit's tree, verified behind the layers that drafting ran or through all.

python tools/bench/tree_resume.py [--target FOLDER] [--depth N] [--widths 2x2x1] [--threads N]
prints one JSON object.

Both decode the same prompts of drawn tokens in turns, and make the same rounds. The exit is not
trained: a round takes as long whatever is accepted. `ratio` is the time of all layers over that of
resuming, above 1 where resuming pays; its interval resamples pairs of runs.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from real.decode.engine import attach_engine, make_passes
from real.decode.loop import decode
from real.decode.plans import StaticTree
from real.drafters.early_exit import EarlyExitDrafter, EarlyExitHead
from real.model.checkpoint import load_decoder
from real.model.target import Target
from real.pair import TINY
from real.sampling import Rule
from simspec.tree.tree import tree_of_widths


class WholePasses(EarlyExitDrafter):
    """An early exit whose drafts are verified through all layers."""

    def resume(self, grown=()):
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--target", type=Path, default=TINY / "target")
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--widths", default="2x2x1")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--engine", default="eager")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--budget", type=int, default=24)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    decoder = load_decoder(options.target)
    tree = tree_of_widths(map(int, options.widths.split("x")))
    passes = make_passes(options.engine, len(tree) + 1, options.context + options.budget)
    head = EarlyExitHead(decoder, options.depth)
    runs = {}
    for name, kind in (("resumed", EarlyExitDrafter), ("whole", WholePasses)):
        drafter = kind(decoder, head)
        attach_engine(passes, decoder, drafter)
        runs[name] = Target(decoder, drafter.taps, passes=passes), drafter
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(options.prompts + 1):  # the first is a warm-up
        prompt = torch.randint(decoder.config.vocab, (options.context,)).tolist()
        texts = []
        for name in list(runs)[:: 1 if i % 2 else -1]:
            done = decode(*runs[name], StaticTree(tree), Rule(), prompt, options.budget, sequence=i)
            texts.append(done.token.tolist())
            if i:
                seconds[name].append(done.seconds.sum() / len(done.position))
        if texts[0] != texts[1]:
            print(f"prompt {i}: the texts differ, at a near-tie")
    whole, resumed = (np.array(seconds[name]) for name in ("whole", "resumed"))
    interval = stats.bootstrap(
        (whole, resumed), lambda a, b: a.sum() / b.sum(), paired=True, vectorized=False, rng=0
    ).confidence_interval
    print(
        json.dumps(
            {
                "target": options.target.name,
                "layers": len(decoder.layers),
                "depth": options.depth,
                "nodes": len(tree),
                "threads": torch.get_num_threads(),
                "engine": options.engine,
                "seconds_per_round": {"whole": whole.mean(), "resumed": resumed.mean()},
                "ratio": whole.sum() / resumed.sum(),
                "interval": list(interval),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()

"""A step of Muon on one matrix, PyTorch's in bfloat16 against ours in float32, as one JSON:
python tools/bench/muon.py [--rows 576] [--columns 1536] [--threads N]

Both take steps in turns. `ratio` is PyTorch's median over ours; where the processor multiplies
bfloat16 by its own instructions, `simspec train` takes PyTorch's (`real.train.optimizers`).
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

from real.model.prepacked import multiplies_bfloat16
from real.train.optimizers import Float32Muon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=576)
    parser.add_argument("--columns", type=int, default=1536)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    shape, steps = (options.rows, options.columns), {}
    seconds: dict[str, list[float]] = {"bfloat16": [], "float32": []}
    for name, muon in (("bfloat16", torch.optim.Muon), ("float32", Float32Muon)):
        weight = nn.Parameter(torch.randn(shape))
        steps[name] = weight, muon([weight], lr=1e-3, adjust_lr_fn="match_rms_adamw")
    for repeat in range(options.repeats + 1):  # the first is a warm-up
        for name, (weight, optimizer) in steps.items():
            weight.grad = torch.randn(shape)
            start = time.perf_counter()
            optimizer.step()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    print(
        json.dumps(
            {
                "shape": shape,
                "threads": torch.get_num_threads(),
                "bfloat16_by_own_instructions": multiplies_bfloat16("cpu"),
                "seconds": median,
                "ratio": median["bfloat16"] / median["float32"],
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()

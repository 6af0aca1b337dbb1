"""A draft model without training: the target without some of its layers, as a checkpoint.

Usage: python tools/skip_layers.py models/smollm2/target models/smollm2/draft 12 19

Layers 12 to 19, counted from 0, are left out. Draft and Verify (arXiv 2309.08168) drafts so; here
the drafter is a separate checkpoint, which every engine loads.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from real.model.checkpoint import load_decoder, save_decoder
from real.model.hf_config import end_tokens


def main(target: Path, out: Path, first: int, last: int) -> None:
    decoder = load_decoder(target)
    kept = [layer for i, layer in enumerate(decoder.layers) if not first <= i <= last]
    if not 0 <= first <= last < len(decoder.layers) or not kept:
        raise SystemExit(
            f"layers {first} to {last} of {len(decoder.layers)}: expected first <= last, some left"
        )
    end = next(iter(end_tokens(target, decoder.config.vocab)), None)
    decoder.config = replace(decoder.config, layers=len(kept))
    decoder.layers = nn.ModuleList(kept)
    out.mkdir(parents=True, exist_ok=True)
    save_decoder(decoder, out, end, decoder.context or 2048, torch.float32)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (out / name).write_bytes((target / name).read_bytes())
    print(f"{out}: {len(kept)} layers of {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))

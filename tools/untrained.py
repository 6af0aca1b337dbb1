"""Draft models without training.

Usage: python tools/untrained.py sizes models/smollm2 traces/smollm2/drafters/glide.json ...
       python tools/untrained.py skip models/smollm2/target models/smollm2/draft 12 19

sizes: drafters with random weights in the sizes of cards, where the trained weights are not at
hand; costs measured with them are those of the trained ones, as seconds depend on sizes. skip: the
target without layers 12 to 19, counted from 0, as a checkpoint, which every engine loads. Draft and
Verify (arXiv 2309.08168) drafts so.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from real.drafters import BUILTIN
from real.files import replace_json
from real.model.checkpoint import end_tokens, load_decoder, load_tokenizer, save_decoder
from real.model.decoder import Decoder
from real.model.draft_head import save_draft_head, save_vocabulary
from real.model.stored_weights import made_for


def sizes(models: Path, cards: list[Path]) -> None:
    path = models / "target"
    target, tokenizer = load_decoder(path), load_tokenizer(path)
    hashes = made_for(path, target, tokenizer)
    for card in cards:
        asked = json.loads(card.read_text(encoding="utf-8"))["asked"]
        name, folder = asked["drafter"], models / card.stem
        if folder.exists():
            print(f"{folder} exists and stays")
            continue
        recipe = BUILTIN[name].recipe
        assert recipe is not None  # it was trained
        torch.manual_seed(0)
        settings = {k: v for k, v in asked["settings"].items() if v is not None}
        head = recipe.head(target, **settings)
        if size := asked.get("draft_vocab"):
            head.restrict(target, torch.arange(size))
        if isinstance(head, Decoder):
            if size:
                save_vocabulary(head.draft_token, folder)
            end = next(iter(end_tokens(path, target.config.vocab)), None)
            save_decoder(head, folder, end, target.context)
        else:
            save_draft_head(head, folder, recipe.file, hashes)
        replace_json(folder / "card.json", {"untrained": True, "sizes of": card.name})
        print(f"{folder}: untrained, with the sizes of {card}")


def skip(target: Path, out: Path, first: int, last: int) -> None:
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
    way, first, second, *rest = sys.argv[1:]
    if way == "sizes":
        sizes(Path(first), [Path(name) for name in (second, *rest)])
    else:
        skip(Path(first), Path(second), *map(int, rest))

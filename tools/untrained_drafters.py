"""Drafters with random weights in the sizes of cards, where the trained weights are not at hand.

Usage: python tools/untrained_drafters.py models/smollm2 traces/smollm2/drafters/glide.json ...

Costs measured with them are those of the trained ones: seconds depend on sizes, not on values.
"""

import json
import sys
from pathlib import Path

import torch

from real.drafters import BUILTIN
from real.files import replace_json
from real.model.checkpoint import load_decoder, load_tokenizer, save_decoder
from real.model.decoder import Decoder
from real.model.draft_head import save_draft_head, save_vocabulary
from real.model.hf_config import end_tokens
from real.model.stored_weights import made_for


def main(models: Path, cards: list[Path]) -> None:
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])

"""A model folder of toy size: a random target with its tokenizer, and a random early exit."""

from pathlib import Path
from random import Random

import torch
from toy_tokenizer import END, train_tokenizer

from real.drafters import BUILTIN
from real.model.checkpoint import load_decoder, save_decoder
from real.model.decoder import Decoder, DecoderConfig, initialize
from real.model.draft_head import save_draft_head
from real.model.stored_weights import made_for

SENTENCE = "a drafter proposes and the target disposes of every token that it is shown"
WORDS = SENTENCE.split()
TEXT = " ".join(Random(0).choices(WORDS, k=1500))
TRAIN = ["train", "early_exit", "text.txt", "--rows", "2", "--distil-tokens", "1500", "--out", "m"]
"""A training in a folder of `begin_training`."""


def begin_training(folder: Path) -> None:
    """Writes a text and a toy target whose drafters `TRAIN` trains."""
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text(TEXT)
    save_toy_target(folder / "m" / "target", context=96)


def save_toy_target(folder: Path, context: int = 512, seed: int = 0) -> Decoder:
    """Writes a random target of 300 byte-level tokens; returns it as it is loaded."""
    tokenizer = train_tokenizer([TEXT], 300)
    size = tokenizer.get_vocab_size()
    decoder = Decoder(DecoderConfig(size, 16, 3, heads=2, kv_heads=2, head_dim=8, hidden=24))
    initialize(decoder, seed)
    save_decoder(decoder, folder, tokenizer.token_to_id(END), context)
    tokenizer.save(str(folder / "tokenizer.json"))
    return load_decoder(folder)


def save_toy_models(folder: Path) -> None:
    """Writes `target/`, `model/` and `early_exit/`."""
    save_toy_target(folder / "model", seed=1)
    target = save_toy_target(folder / "target")
    tokenizer = train_tokenizer([TEXT], 300)
    recipe = BUILTIN["early_exit"].recipe
    torch.manual_seed(1)
    head = recipe.head(target, depth=1)
    hashes = made_for(folder / "target", target, tokenizer)
    save_draft_head(head, folder / "early_exit", recipe.file, hashes)

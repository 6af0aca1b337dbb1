"""The text that models are trained on: its tokenizer and its tokens, read once."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from real.files import replacing
from real.model.checkpoint import load_tokenizer
from real.progress import Progress, quiet
from real.train.config import TrainConfig
from real.train.corpus import documents, encode, train_tokenizer, windows


@dataclass(frozen=True)
class EncodedText:
    """The tokenizer, the tokens to train on, and those of each held-out file."""

    tokenizer: Any
    tokens: np.ndarray
    heldout: dict[str, np.ndarray]


def read_training_text(
    config: TrainConfig, out: Path, work: Path, progress: Progress = quiet
) -> EncodedText:
    """Fits the tokenizer and encodes the text, once; unusable text leaves no files behind."""
    created = [_highest_missing(folder) for folder in (out, work) if not folder.exists()]
    try:
        tokenizer = _tokenizer(config, out, progress)
        tokens = encoded_text(config, tokenizer, work, progress)
        heldout = {
            Path(p).name.split(".")[0]: encode(tokenizer, (d["text"] for d in documents([p])))
            for p in config.heldout
        }
        # too short a text is refused now, not after hours
        windows(tokens, 1, config.target_plan.length, 0, 0)
        for part in heldout.values():
            whole_windows(part, config.target_plan.length)
    except (ValueError, OSError):
        for folder in created:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return EncodedText(tokenizer, tokens, heldout)


def encoded_text(config: TrainConfig, tokenizer, work: Path, progress: Progress) -> np.ndarray:
    """The tokens of the text, from `<work>/text.npy` where it exists."""
    path = work / "text.npy"
    if not path.exists():
        progress("tokens", 0, 1, "reading the text")
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, encode(tokenizer, (d["text"] for d in documents(config.text))))
    tokens = np.load(path, mmap_mode="r")
    progress("tokens", 1, 1, f"{len(tokens):,} tokens")
    return tokens


def whole_windows(tokens: np.ndarray, length: int) -> int:
    """How many whole windows held-out tokens have; ValueError for none."""
    count = (len(tokens) - 1) // length
    if count < 1:
        raise ValueError(f"held-out text has {len(tokens)} tokens; expected more than {length}")
    return count


def _highest_missing(folder: Path) -> Path:
    """The highest folder of a path that does not exist yet."""
    while not folder.parent.exists():
        folder = folder.parent
    return folder


def _tokenizer(config: TrainConfig, out: Path, progress: Progress):
    path = out / "target" / "tokenizer.json"
    if not path.exists():
        progress("tokenizer", 0, 1, "fitting the BPE")
        texts = [d["text"] for _, d in zip(range(config.sample), documents(config.text))]
        tokenizer = train_tokenizer(texts, config.vocab).to_str(pretty=True)
        with replacing(path) as temporary:
            temporary.write_text(tokenizer, encoding="utf-8")
    progress("tokenizer", 1, 1)
    return load_tokenizer(out / "target")

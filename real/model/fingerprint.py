"""Hashes that identify checkpoints, tokenizers and targets."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import torch

from real.model.compressed import read_bytes, weight_files
from real.model.decoder import Decoder
from real.model.layer import frequencies


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file, or of a folder's safetensors in name order; compressed ones by their
    content."""
    digest = hashlib.sha256()
    for file in weight_files(path) if path.is_dir() else [path]:
        if not file.exists():
            digest.update(read_bytes(file))
            continue
        with open(file, "rb") as opened:
            while piece := opened.read(1 << 22):
                digest.update(piece)
    return digest.hexdigest()


def weights_id(path: str | Path) -> str:
    """The hash of a local checkpoint's weights, or the hub name of another."""
    return sha256(Path(path)) if Path(path).is_dir() else str(path)


def tokenizer_sha256(tokenizer) -> str:
    """Hex SHA-256 of a tokenizer's canonical JSON."""
    return hashlib.sha256(tokenizer.to_str(pretty=False).encode()).hexdigest()


def made_for(path: str | Path, decoder: Decoder, tokenizer) -> dict[str, str]:
    """Hashes of a target's weights, config and tokenizer: what a drafter was trained for."""
    plain = torch.allclose(
        decoder.frequency.double().cpu(), frequencies(decoder.config), rtol=1e-6, atol=0
    )
    # not to the last digit: libraries differ there
    scaled = [] if plain else [f"{x:.5e}" for x in decoder.frequency.tolist()]
    options = asdict(decoder.config)
    if not options["output_bias"]:  # hashes from before this option stay valid
        del options["output_bias"]
    config = json.dumps([options, scaled, round(decoder.scaling, 6)], sort_keys=True)
    return {
        "weights": weights_id(path),
        "config": hashlib.sha256(config.encode()).hexdigest(),
        "tokenizer": tokenizer_sha256(tokenizer),
    }

"""Stored weights: compressed files, int8, and the hashes that identify checkpoints and targets."""

import hashlib
import json
import lzma
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from real.model.decoder import Decoder, frequencies
from simspec.output.files import reraised


class WeightsError(ValueError):
    """A checkpoint that cannot be used, and why."""


MAX_RATIO = 16  # of decompression: weights give 1.5, a malicious file thousands


def read_bytes(path: str | Path) -> bytes:
    """The bytes of `path`, or of path.xz decompressed; OSError without either, ValueError for a
    damaged one."""
    packed = _packed(path)
    if Path(path).exists() or not packed.exists():
        return Path(path).read_bytes()
    return _decompressed(packed.read_bytes(), packed)


def weights_exist(path: str | Path) -> bool:
    """Whether `path` or path.xz exists."""
    return Path(path).exists() or _packed(path).exists()


def weight_files(folder: str | Path) -> list[Path]:
    """The .safetensors files of a folder in name order; compressed ones without .xz."""
    plain, packed = (Path(folder).glob(f"*.safetensors{suffix}") for suffix in ("", ".xz"))
    return sorted({*plain, *(path.with_suffix("") for path in packed)})


def _packed(path: str | Path) -> Path:
    return Path(path).with_name(Path(path).name + ".xz")


def _decompressed(compressed: bytes, path: Path) -> bytes:
    reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 28)
    what = f"{path} is damaged or no .xz file"
    with reraised(ValueError, what, "fetch it again", (lzma.LZMAError, EOFError)):
        out = reader.decompress(compressed, MAX_RATIO * len(compressed) + 1)
    if len(out) > MAX_RATIO * len(compressed):
        raise ValueError(
            f"{path} decompresses to more than {MAX_RATIO} times its size, expected weights; "
            "fetch it again"
        )
    if not reader.eof or reader.unused_data:
        raise ValueError(f"{path} is truncated or has trailing bytes; fetch it again")
    return out


SCALE = ".int8_scale"
"""Suffix of the tensor that holds a matrix's scales."""


def from_int8(state: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Float32 weights of a state with int8 matrices; one without scales is returned unchanged.

    W[i, j] is NAME[i, j] * NAME.int8_scale[i], of scales max_j |W[i, j]| / 127.
    WeightsError for scales without a matrix, of another length, negative or not finite.
    """
    scales = {name.removesuffix(SCALE): name for name in state if name.endswith(SCALE)}
    read = {name: value for name, value in state.items() if not name.endswith(SCALE)}
    for name, key in scales.items():
        value, scale = read.get(name), state[key]
        if value is None or value.dtype != torch.int8 or value.ndim != 2:
            raise WeightsError(f"{source} has {key} without an int8 matrix {name}; fetch it again")
        if scale.shape != value.shape[:1] or not scale.is_floating_point():
            raise WeightsError(
                f"{source}: {key} is {list(scale.shape)}, expected a float for each of "
                f"{value.shape[0]} rows of {name}; fetch it again"
            )
        if not scale.isfinite().all() or (scale < 0).any():
            raise WeightsError(f"{source}: {key} is not of finite scales >= 0; fetch it again")
        read[name] = value.float() * scale.float()[:, None]
    return read


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file, or of a folder's safetensors in name order; compressed ones by their
    content."""
    digest = hashlib.sha256()
    for file in weight_files(path) if path.is_dir() else [path]:
        if not file.exists():
            digest.update(read_bytes(file))
            continue
        with open(file, "rb") as opened:
            hashlib.file_digest(opened, lambda: digest)
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

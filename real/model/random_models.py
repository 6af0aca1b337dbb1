"""Decoders with random weights, for timing: latency depends on shapes, barely on values."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from real.model.config import DecoderConfig
from real.model.decoder import Decoder
from real.model.layer import RMSNorm, frequencies
from simspec.cost.roofline import SHAPES, ModelShape, cache_bytes, matrix_weights
from simspec.output.files import read_json

VOCAB = 32000
"""Default vocabulary of a shape given as LAYERSxWIDTHxHEADS."""


def read_shape(text: str, vocab: int | None = None) -> ModelShape:
    """The shape that a text means: a model's name, a file of `ModelShape`'s fields as JSON, or
    LAYERSxWIDTHxHEADS[xVOCAB].

    The short form has as many key heads as heads, a SwiGLU of 8/3 of the width rounded up to a
    multiple of 8, a tied head, and `vocab` tokens (32,000 by default). ValueError, one line, for
    anything else.
    """
    if re.fullmatch(r"\d+(x\d+){2,3}", text):
        layers, width, heads, *rest = map(int, text.split("x"))
        if not heads or width % (2 * heads):
            raise ValueError(
                f"shape {text!r}: width {width} does not split into {heads} heads of an even size; "
                "expected such as 4x64x4"
            )
        hidden = -(-8 * width // 24) * 8
        return ModelShape(
            text,
            layers,
            width,
            heads,
            heads,
            width // heads,
            hidden,
            rest[0] if rest else vocab or VOCAB,
            tied=True,
        )
    if text.endswith(".json"):
        return read_json(text, lambda data: _shape(data, Path(text).stem), "model shape")
    if text not in SHAPES:
        raise ValueError(f"shape {text!r} is unknown, expected one of {', '.join(SHAPES)}")
    return SHAPES[text]


def _shape(data, name: str) -> ModelShape:
    names = {f.name for f in fields(ModelShape)}
    sizes = names - {"name", "tied", "weight_bytes", "cache_bytes"}
    if not isinstance(data, dict) or not sizes <= set(data) <= names:
        raise ValueError(
            f"expected one object with the keys {', '.join(sorted(sizes))}, and maybe tied"
        )
    if not isinstance(data.get("name", ""), str) or not isinstance(data.get("tied", False), bool):
        raise ValueError("name must be text and tied true or false")
    for key in names - {"name", "tied"}:
        value, kinds = data.get(key, 1), (int, float) if key.endswith("_bytes") else (int,)
        if type(value) not in kinds or not 0 < value < float("inf"):
            raise ValueError(f"{key} is {value!r}, expected a positive number")
    values: dict[str, Any] = {"name": name} | data
    return ModelShape(**values)


def read_target(text: str):
    """The ModelShape that `read_shape` makes of a text, or that of a checkpoint's folder, without
    biases and head norms."""
    from real.model.checkpoint import load_config
    from real.model.hf_config import decoder_config

    folder = Path(text)
    if not folder.is_dir():
        return read_shape(text)
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{text} holds no config.json; expected the folder of a transformers checkpoint"
        )
    s = decoder_config(load_config(folder))
    name = folder.resolve().name
    return ModelShape(
        name, s.layers, s.width, s.heads, s.kv_heads, s.head_dim, s.hidden, s.vocab, s.tied
    )


def random_decoder(shape: ModelShape, dtype: torch.dtype, device: str, seed: int = 0) -> Decoder:
    """A decoder of that shape with normal weights of deviation 0.02, allocated on the device.

    ValueError where heads is no multiple of kv_heads, and for an odd head_dim.
    """
    s = shape
    if s.heads % s.kv_heads or s.head_dim % 2:
        raise ValueError(
            f"shape {s.name!r}: {s.heads} heads, {s.kv_heads} key heads of {s.head_dim}; "
            "expected a multiple, and an even size"
        )
    sizes = DecoderConfig(
        s.vocab, s.width, s.layers, s.heads, s.kv_heads, s.head_dim, s.hidden, tied=s.tied
    )
    turns = frequencies(sizes)
    with torch.device("meta"):
        made = Decoder(sizes, frequency=turns).to(dtype)
    made.to_empty(device=device)
    if s.tied:  # to_empty separates tied weights
        made.head.weight = made.embed.weight
    random = torch.Generator(made.device).manual_seed(seed)
    for module in made.modules():
        for weight in module.parameters(recurse=False):
            if isinstance(module, RMSNorm):
                nn.init.ones_(weight)
            else:
                nn.init.normal_(weight, std=0.02, generator=random)
    return made.requires_grad_(False).eval()


def parameters(shape: ModelShape) -> int:
    """All weights: matrices, two norms a layer and a final one, and an embedding of its own."""
    norms = (2 * shape.layers + 1) * shape.width
    return matrix_weights(shape) + norms + shape.width * shape.vocab * (not shape.tied)


def needed(shapes, dtype: torch.dtype, context: int) -> float:
    """Bytes of the weights of these shapes and of a cache of `context` rows each, in `dtype`."""
    size = torch.empty((), dtype=dtype).element_size()
    sized = [replace(s, weight_bytes=size, cache_bytes=size) for s in shapes]
    return sum(size * parameters(s) + context * cache_bytes(s) for s in sized)


def free(device: str) -> float:
    """Free memory of the device in bytes; infinity where unknown."""
    if device.startswith("cuda"):
        return float(torch.cuda.mem_get_info(torch.device(device))[0])
    try:
        told = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024.0 * int(told["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError, IndexError):
        return float("inf")


def check_room(shapes, dtype: torch.dtype, context: int, device: str) -> None:
    """ValueError where these shapes do not fit into nine tenths of the device's free memory."""
    wanted, there = needed(shapes, dtype, context), 0.9 * free(device)
    if wanted > there:
        names = " and ".join(s.name for s in shapes)
        raise ValueError(
            f"{names} need {wanted / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, "
            f"{device} has {there / 1e9:.1f} GB free: use a smaller shape, "
            "bfloat16 or another device"
        )

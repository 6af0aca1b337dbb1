"""GGUF files: what they hold, checked before anything is loaded."""

import struct
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from real.model.hf_config import FAMILIES, WeightsError
from real.model.random_models import free

PACKAGES = ("gguf", "accelerate")
HEADER = struct.Struct("<4sIQQ")
"""Magic, version, number of tensors, number of metadata keys."""
VERSIONS = (2, 3)
LEAST_ENTRY = 12
"""Bytes that a tensor or a metadata key takes at least."""


@dataclass(frozen=True)
class GGUFSummary:
    """What a GGUF file says of itself.

    | field | meaning |
    | --- | --- |
    | architecture, name, license | as in its metadata; "": not stated |
    | types | number type -> tensors stored in it, such as Q4_1: 210 |
    | numbers | weights in all tensors |
    | end_tokens | of the end of text, of a turn and of a message |
    """

    architecture: str
    name: str
    license: str
    types: dict[str, int]
    numbers: int
    end_tokens: tuple[int, ...]


def check_packages() -> None:
    """ValueError where a package that GGUF files need is not installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"GGUF files need the package {' and '.join(missing)}: pip install 'simspec[gguf]'"
        )


def read_summary(path: Path) -> GGUFSummary:
    """The summary of a GGUF file whose model our decoder computes.

    WeightsError for what is no GGUF file, a damaged or truncated one, an architecture or option
    that is not supported, and weights that do not fit into memory.
    """
    _check_header(path)
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        tensors = [(t.name, t.tensor_type.name, int(t.n_elements)) for t in reader.tensors]
    except Exception as error:  # the reader raises whatever it meets first
        raise WeightsError(
            f"{path} is a damaged or truncated GGUF file: {' '.join(str(error).split())[:200]}; "
            "fetch it again"
        ) from error
    architecture = fields.get("general.architecture")
    _check_options(path, architecture, fields, {name for name, _, _ in tensors})
    numbers = sum(n for _, _, n in tensors)
    if 8 * numbers > free("cpu"):  # as float32, once more while it is written
        raise WeightsError(
            f"{path} holds {numbers:,} weights, {8 * numbers / 1e9:.1f} GB while they are "
            "converted; this machine has less memory free"
        )
    return GGUFSummary(
        str(architecture),
        str(fields.get("general.name", "")),
        str(fields.get("general.license", "")),
        dict(Counter(kind for _, kind, _ in tensors)),
        numbers,
        _end_tokens(fields),
    )


def _check_header(path: Path) -> None:
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            start = file.read(HEADER.size)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}") from error
    if start[:4] != b"GGUF":
        raise WeightsError(f"{path} is no GGUF file: it does not start with the letters GGUF")
    if len(start) < HEADER.size:
        raise WeightsError(f"{path} is a damaged or truncated GGUF file: it has {size} bytes")
    _, version, tensors, keys = HEADER.unpack(start)
    if version not in VERSIONS:
        raise WeightsError(
            f"{path} is GGUF version {version}; expected {' or '.join(map(str, VERSIONS))}"
        )
    if LEAST_ENTRY * (tensors + keys) > size:
        raise WeightsError(
            f"{path} is a damaged or truncated GGUF file: {tensors} tensors and {keys} keys "
            f"in {size} bytes"
        )


def _check_options(
    path: Path, architecture: Any, fields: dict[str, Any], tensors: set[str]
) -> None:
    if architecture not in FAMILIES:
        raise WeightsError(
            f"{path} holds architecture {architecture!r}; expected one of {', '.join(FAMILIES)}"
        )
    # transformers reads neither: a model with them would come out wrong
    scaling = fields.get(f"{architecture}.rope.scaling.type", "none")
    factors = sorted(name for name in tensors if name.startswith("rope_"))
    if scaling != "none" or factors:
        what = factors[0] if factors else f"rope.scaling.type {scaling!r}"
        raise WeightsError(
            f"{path} scales its rotary positions ({what}), which is not read from GGUF; "
            "use the model's safetensors checkpoint"
        )
    if fields.get(f"{architecture}.expert_count", 0):
        raise WeightsError(f"{path} is a mixture of experts; expected a dense model")


def _end_tokens(fields: dict[str, Any]) -> tuple[int, ...]:
    named = (fields.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(int(token) for token in named if token is not None))

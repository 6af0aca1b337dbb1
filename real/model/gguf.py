"""GGUF files: sizes and options are checked, then transformers converts them into a checkpoint."""

import struct
from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file

from real.files import read_card, replace_json, whole_folder
from real.model.checkpoint import (
    ATTENTION,
    FAMILIES,
    WeightsError,
    load_decoder,
    load_tokenizer,
    no_reports,
    plain_byte_level,
)
from real.model.stored_weights import sha256, tokenizer_sha256
from simspec.output.files import reraised


def free_memory() -> float:
    """Free memory in bytes; infinity where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        told = dict(line.split(":", 1) for line in lines)
        return 1024.0 * int(told["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError, IndexError):
        return float("inf")


def import_gguf(path: Path, out: Path, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Converts a GGUF file into the checkpoint folder `out`, and returns its card.

    Weights are those of the file, rounded to `dtype`; an import that is there is left as it is.
    ValueError for an `out` that holds anything else, a missing package, a file that is damaged or
    holds what transformers does not read from GGUF, and weights that do not fit into memory.
    """
    if not path.is_file():
        raise ValueError(f"{path} is no file; expected one that ends in .gguf")
    source = {"source_sha256": sha256(path), "dtype": str(dtype).removeprefix("torch.")}
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        card = read_card(out / "card.json") if (out / "card.json").is_file() else {}
        if source.items() <= card.items():
            return card
        raise ValueError(f"{out} holds something else than this import; name another folder")
    if missing := [name for name in ("gguf", "accelerate") if find_spec(name) is None]:
        raise ValueError(f"GGUF files need {' and '.join(missing)}: pip install 'simspec[gguf]'")
    ends = check_gguf(path)
    with whole_folder(out) as part:
        _convert(path, part, dtype, ends)
        card = {
            "source": path.name,
            **source,
            "parameters": sum(p.numel() for p in load_decoder(part).parameters()),
            "weights_sha256": sha256(part),
            "tokenizer_sha256": tokenizer_sha256(load_tokenizer(part)),
        }
        replace_json(part / "card.json", card)
    return card


def _read(path: Path) -> tuple[Any, dict[str, Any]]:
    """(the file's reader, its fields); WeightsError for a damaged file."""
    with open(path, "rb") as file:
        magic, version, tensors, keys = struct.unpack("<4sIQQ", file.read(24).ljust(24, b"\0"))
    if magic != b"GGUF" or version not in (2, 3):
        raise WeightsError(f"{path} is no GGUF file of version 2 or 3")
    from gguf import GGUFReader

    what = f"{path} is damaged or truncated"
    # the reader raises whatever it meets first
    with reraised(WeightsError, what, "fetch it again", Exception):
        _check_counts(path, tensors, keys)
        reader = GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    return reader, fields


def stored_template(path: Path) -> str:
    """The chat template that a GGUF file holds; "" for none, and without the package `gguf`."""
    if find_spec("gguf") is None:
        return ""
    text = _read(path)[1].get("tokenizer.chat_template")
    return text if isinstance(text, str) else ""


def check_gguf(path: Path) -> list[int]:
    """The end tokens that a GGUF file names; WeightsError where it cannot be converted."""
    reader, fields = _read(path)
    family = fields.get("general.architecture")
    if family not in FAMILIES or fields.get(f"{family}.expert_count", 0):
        raise WeightsError(f"{path} is {family!r}; expected a dense one of {', '.join(FAMILIES)}")
    # transformers reads neither: a model with them would come out wrong
    scaling = fields.get(f"{family}.rope.scaling.type", "none")
    if scaling != "none" or any(t.name.startswith("rope_") for t in reader.tensors):
        raise WeightsError(f"{path} scales its rotary positions, which GGUF loses")
    needed = 8 * sum(int(t.n_elements) for t in reader.tensors)  # as float32, twice while written
    if needed > free_memory():
        raise WeightsError(f"{path} takes {needed / 1e9:.1f} GB of memory, which is not free")
    named = (fields.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom"))
    return list(dict.fromkeys(int(token) for token in named if token is not None))


WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a GGUF value by its type."""
STRING, ARRAY = 8, 9
MOST_VALUES = 1 << 21
"""Values of all arrays: the reader takes some 300 bytes of memory for each; Gemma has 1.3 M."""


def _check_counts(path: Path, tensors: int, keys: int) -> None:
    """ValueError where tensors, keys or arrays count more than the file has bytes for.

    The reader believes every count, and loops over it.
    """
    left, values = path.stat().st_size - 24, 0
    with open(path, "rb") as file:
        file.seek(24)

        def take(count: int, width: int = 1, read: bool = False) -> int:
            """Skips `count` parts of `width` bytes, or reads one number of that width."""
            nonlocal left
            if count * width > left:
                raise ValueError(f"{count} parts of {width} bytes in the {left} that are left")
            left -= count * width
            if read:
                return int.from_bytes(file.read(width), "little")
            return file.seek(count * width, 1)

        def number(width: int) -> int:
            return take(1, width, read=True)

        take(0 if 12 * (tensors + keys) <= left else tensors + keys, 12)  # at least
        for _ in range(keys):
            take(number(8))
            kind, count = number(4), 1
            if kind == ARRAY:
                kind, count = number(4), number(8)
                values += count
            if values > MOST_VALUES:
                raise ValueError(f"{values} values in arrays, expected at most {MOST_VALUES}")
            if kind != STRING:
                take(count, WIDTHS[kind])  # KeyError: an array of arrays, or of unknown values
                continue
            for _ in range(count):
                take(number(8))


def _convert(path: Path, folder: Path, dtype: torch.dtype, ends: list[int]) -> None:
    """Writes weights, configs and tokenizer of a GGUF file into `folder`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    no_reports()

    with TemporaryDirectory() as alone, redirect_stderr(StringIO()):
        # nothing but this file is read: files next to it could be of another model
        (Path(alone) / "model.gguf").symlink_to(path.resolve())
        asked: Any = {"gguf_file": "model.gguf", "trust_remote_code": False}
        whole = {"output_loading_info": True, "attn_implementation": ATTENTION}
        # transformers raises whatever it meets first
        with reraised(WeightsError, f"{path} cannot be converted", raised=Exception):
            loaded: Any = AutoModelForCausalLM.from_pretrained
            model, info = loaded(alone, dtype=torch.float32, **whole, **asked)
            tokenizer: Any = AutoTokenizer.from_pretrained(alone, **asked)
    odd = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
    weights = {name: value.to(dtype).contiguous() for name, value in model.state_dict().items()}
    if odd or not all(value.isfinite().all() for value in weights.values()):
        fault = f"{odd[0]} is missing or unknown" if odd else "weights are not finite"
        raise WeightsError(f"{path} does not hold its architecture ({fault}); fetch it again")
    config = model.config
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]
    config.__dict__.pop("quantization_config", None)  # the weights are plain numbers now
    config.eos_token_id = model.generation_config.eos_token_id = ends or None
    config.architectures, config.dtype = [type(model).__name__], dtype
    for each in (config, model.generation_config, tokenizer):
        each.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    file = folder / "tokenizer.json"
    file.write_text(plain_byte_level(file.read_text(encoding="utf-8")), encoding="utf-8")

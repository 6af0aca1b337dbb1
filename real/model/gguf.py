"""GGUF files: checked before loading, converted into checkpoints, and written from checkpoints."""

import re
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from logging import CRITICAL
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from real.files import replace_json, replacing
from real.model.checkpoint import ATTENTION, load_decoder, plain_byte_level
from real.model.config import DecoderConfig
from real.model.decoder import Decoder
from real.model.draft_head import load_vocabulary
from real.model.draft_vocabulary import DraftVocabularyHead
from real.model.hf_config import FAMILIES, WeightsError, decoder_config
from real.model.layer import frequencies
from real.model.random_models import free

PACKAGES = ("gguf", "accelerate")
HEADER = struct.Struct("<4sIQQ")
"""Magic, version, number of tensors, number of metadata keys."""
VERSIONS = (2, 3)
LEAST_ENTRY = 12
"""Bytes that a tensor or a metadata key takes at least."""


@dataclass(frozen=True)
class GGUFSummary:
    """Metadata of a GGUF file.

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


WEIGHTS = "model.safetensors"


def convert(path: Path, summary: GGUFSummary, folder: Path, dtype: torch.dtype) -> int:
    """Writes weights, config, generation config and tokenizer of a GGUF file into `folder`.

    The values are those of the GGUF file, rounded to `dtype`; a tied head is left out. Returns the
    number of parameters. WeightsError for what transformers cannot convert.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with TemporaryDirectory() as alone, _silence():
        # nothing but this file is read: files next to it could be of another model
        (Path(alone) / "model.gguf").symlink_to(path.resolve())
        asked = {"gguf_file": "model.gguf", "trust_remote_code": False}
        try:
            # a pair with output_loading_info, unlike its annotation
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                alone,
                dtype=torch.float32,
                output_loading_info=True,
                attn_implementation=ATTENTION,
                **asked,
            )
            tokenizer: Any = AutoTokenizer.from_pretrained(alone, **asked)
        except Exception as error:  # transformers raises whatever it meets first
            reason = " ".join(str(error).split())[:300]
            raise WeightsError(f"{path} cannot be converted by transformers: {reason}") from error
    model, info = loaded
    odd = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
    if odd:
        raise WeightsError(
            f"{path}: weights and architecture do not match: "
            f"{odd[0]} is missing, unknown or of another shape"
        )
    config = model.config
    if hasattr(config, "quantization_config"):  # the weights are plain numbers now
        del config.quantization_config
    decoder_config(config)
    _save_weights(model, folder / WEIGHTS, dtype)
    _save_configs(config, summary, folder, dtype)
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer.json"
    file.write_text(plain_byte_level(file.read_text(encoding="utf-8")), encoding="utf-8")
    return sum(p.numel() for p in model.parameters())


@contextmanager
def _silence() -> Iterator[None]:
    """Neither progress bars nor reports of transformers; what is odd is said in one line."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(CRITICAL)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)


def _save_weights(model: Any, file: Path, dtype: torch.dtype) -> None:
    tied = bool(model.config.tie_word_embeddings)
    state = {
        name: value.to(dtype).contiguous()
        for name, value in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
    for name, value in state.items():
        if not value.isfinite().all():
            raise WeightsError(f"tensor {name} is not of finite numbers; fetch the file again")
    with replacing(file) as temporary:
        save_file(state, temporary, {"format": "pt"})


def _save_configs(config: Any, summary: GGUFSummary, folder: Path, dtype: torch.dtype) -> None:
    ends = list(summary.end_tokens)
    values = config.to_dict() | {
        "architectures": [_class_name(config)],
        "dtype": str(dtype).removeprefix("torch."),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
    }
    for key in ("_model_name_or_path", "transformers_version", "id2label", "label2id"):
        values.pop(key, None)
    replace_json(folder / "config.json", values)
    tokens = ("bos_token_id", "eos_token_id", "pad_token_id")
    replace_json(folder / "generation_config.json", {name: values.get(name) for name in tokens})


def _class_name(config: Any) -> str:
    """The class of causal language models of a config, by name."""
    from transformers import AutoModelForCausalLM

    kind: Any = AutoModelForCausalLM._model_mapping[type(config)]
    return kind.__name__


FLOATS = {"float32": (torch.float32, 0), "float16": (torch.float16, 1)}
"""Number types of the matrices, and the file types that they make; norms are float32 in both."""

_LAYER = {
    "attention_norm": "attn_norm",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "output": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_OUTER = {"embed": "token_embd", "norm": "output_norm", "head": "output"}


@dataclass(frozen=True)
class GGUFExport:
    """The number of weights in a GGUF file, and the size of its draft vocabulary, if it has one."""

    weights: int
    draft_vocab: int | None


def write_gguf(folder: Path, tokenizer_of: Path, out: Path, dtype: str = "float32") -> GGUFExport:
    """Writes the Llama checkpoint `folder` to `out` with the tokenizer of another GGUF file.

    Engines compare the tokenizers of target and drafter, so that every `tokenizer.*` field is
    copied from the target's GGUF file. A draft vocabulary becomes a head of all tokens with the
    same argmax (`DraftVocabularyHead.whole`).

    WeightsError for another family, scaled rotary positions, a tokenizer of another size, float16
    weights out of range; ValueError for another dtype.
    """
    if dtype not in FLOATS:
        raise ValueError(f"dtype is {dtype!r}; expected {' or '.join(FLOATS)}")
    read_summary(tokenizer_of)
    decoder = load_decoder(folder)
    config = decoder.config
    _check_family(folder, decoder)
    fields = _tokenizer_fields(tokenizer_of)
    tokens = len(fields["tokenizer.ggml.tokens"].data)
    if tokens != config.vocab:
        raise WeightsError(
            f"{tokenizer_of} has {tokens} tokens, {folder} {config.vocab}; name the GGUF file of "
            "a model with the same tokenizer"
        )
    token = load_vocabulary(folder, config.vocab)
    written = 0
    from gguf import GGUFWriter

    with replacing(out) as temporary:
        writer = GGUFWriter(temporary, "llama")
        writer.add_name(folder.name)
        writer.add_file_type(FLOATS[dtype][1])
        _write_sizes(writer, decoder)
        for name, field in fields.items():
            array = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], array)
        for name, values in _tensors(decoder, token):
            matrix = values.ndim == 2
            stored = values.to(FLOATS[dtype][0] if matrix else torch.float32)
            if not stored.isfinite().all():
                raise WeightsError(f"{folder}: {name} is out of float16's range; use float32")
            writer.add_tensor(name, stored.numpy())
            written += values.numel()
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return GGUFExport(written, None if token is None else len(token))


def _check_family(folder: Path, decoder: Decoder) -> None:
    s = decoder.config
    if s.qkv_bias or s.output_bias or s.qk_norm:
        raise WeightsError(
            f"{folder} has biases or head norms; GGUF files are written of the Llama family only"
        )
    if decoder.scaling != 1 or not torch.equal(decoder.frequency, frequencies(s)):
        raise WeightsError(f"{folder} scales its rotary positions, which is not written to GGUF")


def _tokenizer_fields(path: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    found = {name: field for name, field in fields.items() if name.startswith("tokenizer.")}
    if "tokenizer.ggml.tokens" not in found:
        raise WeightsError(f"{path} holds no tokenizer; name the target's own GGUF file")
    return found


def _write_sizes(writer: Any, decoder: Decoder) -> None:
    s = decoder.config
    writer.add_vocab_size(s.vocab)
    writer.add_context_length(decoder.context or 2048)
    writer.add_embedding_length(s.width)
    writer.add_feed_forward_length(s.hidden)
    writer.add_block_count(s.layers)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_rope_dimension_count(s.head_dim)
    writer.add_rope_freq_base(s.rope_theta)
    writer.add_layer_norm_rms_eps(s.norm_eps)


def _tensors(decoder: Decoder, token: Tensor | None) -> Iterator[tuple[str, Tensor]]:
    """GGUF name and values of each tensor, with the whole head of a draft vocabulary."""
    s, state = decoder.config, decoder.state_dict()
    for name, values in state.items():
        if name == "head.weight" and (s.tied or token is not None):
            continue
        yield _gguf_name(name), _paired(name, values, s)
    if token is not None:
        yield "output.weight", DraftVocabularyHead(decoder.head, token).whole().weight


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if match := re.fullmatch(r"layers\.(\d+)\.(.+)", stem):
        return f"blk.{match[1]}.{_LAYER[match[2]]}.{kind}"
    return f"{_OUTER[stem]}.{kind}"


def _paired(name: str, values: Tensor, config: DecoderConfig) -> Tensor:
    """Query and key rows in GGUF's order, where rotary pairs are adjacent rows."""
    heads = {"query": config.heads, "key": config.kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return values
    pairs = values.reshape(heads, 2, config.head_dim // 2, values.shape[1])
    return pairs.transpose(1, 2).reshape(values.shape).contiguous()

"""Writing a Llama checkpoint as a GGUF file that llama.cpp and OpenVINO GenAI load."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from real.files import replacing
from real.model.checkpoint import load_decoder
from real.model.config import DecoderConfig
from real.model.decoder import Decoder
from real.model.draft_head import load_vocabulary
from real.model.draft_vocabulary import DraftVocabularyHead
from real.model.gguf import read_summary
from real.model.hf_config import WeightsError
from real.model.layer import frequencies

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

"""GGUF files of toy size, quantized like published ones."""

import json
from pathlib import Path

import numpy as np
from chat_models import BEGIN, CHAT, TURN, chat_tokenizer
from chat_models import END as END_OF_TEXT
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, TokenType, dequantize, quantize

WIDTH, HEADS, KV_HEADS, HEAD, HIDDEN, LAYERS = 64, 2, 1, 32, 96, 2
QUANTIZED = {"attn_q": Kind.Q4_1, "ffn_down": Kind.Q8_0, "ffn_up": Kind.F16}
"""Number types of some matrices; all others are float32."""


def tensors(vocab: int, seed: int = 0) -> dict[str, np.ndarray]:
    """GGUF name -> random values in transformers' order of rows."""
    random = np.random.default_rng(seed)
    shapes = {"token_embd.weight": (vocab, WIDTH), "output_norm.weight": (WIDTH,)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (WIDTH,),
            f"blk.{i}.attn_q.weight": (HEADS * HEAD, WIDTH),
            f"blk.{i}.attn_k.weight": (KV_HEADS * HEAD, WIDTH),
            f"blk.{i}.attn_v.weight": (KV_HEADS * HEAD, WIDTH),
            f"blk.{i}.attn_output.weight": (WIDTH, HEADS * HEAD),
            f"blk.{i}.ffn_norm.weight": (WIDTH,),
            f"blk.{i}.ffn_gate.weight": (HIDDEN, WIDTH),
            f"blk.{i}.ffn_up.weight": (HIDDEN, WIDTH),
            f"blk.{i}.ffn_down.weight": (WIDTH, HIDDEN),
        }
    return {
        name: (random.normal(0, 0.15, shape) + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


def pairs_adjacent(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a projection in GGUF's order: rotary pairs lie side by side."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def stored(name: str, values: np.ndarray) -> tuple[np.ndarray, Kind]:
    """The bytes of a tensor in its number type."""
    kind = next((k for part, k in QUANTIZED.items() if part in name), Kind.F32)
    return quantize(values, kind), kind


def write_gguf(path: Path, architecture: str = "llama", extra: dict | None = None) -> dict:
    """Writes a GGUF file; returns the values that it holds, by name, in transformers' order."""
    tokenizer = json.loads(chat_tokenizer(begin=False).to_str())
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    vocab = tokenizer["model"]["vocab"] | added
    tokens = sorted(vocab, key=vocab.get)
    writer = GGUFWriter(str(path), architecture)
    writer.add_name("toy")
    writer.add_license("cc0")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    kinds = [TokenType.CONTROL if t in added else TokenType.NORMAL for t in tokens]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(vocab[BEGIN])
    writer.add_eos_token_id(vocab[END_OF_TEXT])
    writer.add_eot_token_id(vocab[TURN])
    writer.add_chat_template(CHAT)
    for key, value in (extra or {}).get("strings", {}).items():
        writer.add_string(key, value)
    held = {}
    for name, values in (tensors(len(tokens)) | (extra or {}).get("tensors", {})).items():
        heads = {"attn_q.": HEADS, "attn_k.": KV_HEADS}.get(name.split(".", 2)[-1][:7], 0)
        data, kind = stored(name, pairs_adjacent(values, heads) if heads else values)
        writer.add_tensor(name, data, raw_dtype=kind)
        # quantization is by row, so that its order does not matter
        plain, kind = stored(name, values)
        held[name] = dequantize(plain, kind).reshape(values.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held

"""Weights in and out: decoders and tokenizers as transformers checkpoints, nothing unpickled."""

import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from real.files import replace_json, replacing
from real.model.compressed import content, weights_in
from real.model.config import DecoderConfig
from real.model.decoder import Decoder
from real.model.rotary import frequencies

FAMILIES = {"llama": {}, "mistral": {}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True}}
_LAYER = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.o_proj": "output",
    "self_attn.q_norm": "query_norm",
    "self_attn.k_norm": "key_norm",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
_OUTER = {"model.embed_tokens": "embed", "model.norm": "norm", "lm_head": "head"}
_BACK = {v: k for k, v in (_LAYER | _OUTER).items()}


class WeightsError(ValueError):
    """A checkpoint that cannot be used, and why."""


def ours(name: str) -> str:
    """Our parameter name for one of transformers', `model.layers.3.mlp.up_proj.weight` -> `layers.3.up.weight`."""
    stem, kind = name.rsplit(".", 1)
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem):
        return f"layers.{match[1]}.{_LAYER[match[2]]}.{kind}"
    return f"{_OUTER[stem]}.{kind}"


def theirs(name: str) -> str:
    """The inverse of `ours`."""
    stem, kind = name.rsplit(".", 1)
    if match := re.fullmatch(r"layers\.(\d+)\.(.+)", stem):
        return f"model.layers.{match[1]}.{_BACK[match[2]]}.{kind}"
    return f"{_BACK[stem]}.{kind}"


def shape_of(config) -> DecoderConfig:
    """Our Shape of a transformers config; WeightsError for a family or an option that the block does not compute."""
    family = config.model_type
    if family not in FAMILIES:
        raise WeightsError(
            f"model type {family!r} is not supported; expected one of {', '.join(FAMILIES)}"
        )
    window = getattr(config, "sliding_window", None)
    if (
        window
        and getattr(config, "use_sliding_window", True)
        and window < config.max_position_embeddings
    ):
        raise WeightsError(
            f"sliding-window attention ({window} tokens) is not supported; use a full-attention model"
        )
    if getattr(config, "hidden_act", "silu") != "silu" or getattr(config, "mlp_bias", False):
        raise WeightsError(
            "only SwiGLU without biases is supported; this config asks for another MLP"
        )
    if family == "llama" and config.attention_bias or family == "qwen3" and config.attention_bias:
        raise WeightsError(
            "attention_bias is not supported for this family; use a checkpoint without it"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    return DecoderConfig(
        vocab=config.vocab_size,
        width=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        hidden=config.intermediate_size,
        rope_theta=float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0),
        norm_eps=config.rms_norm_eps,
        tied=bool(config.tie_word_embeddings),
        **FAMILIES[family],
    )


def _stretched(config) -> tuple[torch.Tensor | None, float]:
    """Rotary frequencies of configs that stretch them, computed by transformers; (None, 1) for plain ones."""
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return None, 1.0
    if kind in ("dynamic", "longrope"):
        raise WeightsError(
            f"rotary type {kind!r} changes with the length and is not supported; use a plain model"
        )
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequency, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequency, float(scaling)


def from_transformers(model) -> Decoder:
    """A Decoder with the weights of a transformers causal language model (Llama, Mistral, Qwen2, Qwen3)."""
    shape = shape_of(model.config)
    decoder = Decoder(shape, *_stretched(model.config)).to(model.dtype)
    state = {ours(k): v for k, v in model.state_dict().items()}
    if shape.tied:
        state["head.weight"] = state["embed.weight"]
    decoder.load_state_dict(state)
    return decoder.requires_grad_(False).eval()


def load_decoder(path: str | Path, dtype=torch.float32, device="cpu") -> Decoder:
    """A decoder from a transformers checkpoint, a folder or a hub name; safetensors only, nothing is unpickled."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # our own jobs say how far they are
    if _local(path) and not (Path(path) / "config.json").exists():
        raise WeightsError(
            f"{path} holds no config.json; expected the folder of a transformers checkpoint"
        )
    try:
        config = AutoConfig.from_pretrained(path)
        shape_of(config)
        model, info = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True
        )
        odd = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
        if odd:
            raise WeightsError(
                f"weights and config do not fit: {odd[0]} is missing, unknown or of another shape"
            )
        return from_transformers(model).to(device)
    except (
        Exception
    ) as error:  # a config is anybody's text, and transformers raises whatever it meets first
        reason = " ".join(str(error).split())[:300]
        raise WeightsError(
            f"{path} cannot be loaded as a transformers checkpoint: {reason}"
        ) from error


def _local(path: str | Path) -> bool:
    """Whether a checkpoint is meant as a folder: hub names have at most one slash and no leading dot or slash."""
    return (
        isinstance(path, Path)
        or Path(path).exists()
        or path.count("/") > 1
        or path.startswith((".", "/", "~"))
    )


def load_tokenizer(path: str | Path):
    """The `tokenizers` tokenizer of a checkpoint folder (its tokenizer.json)."""
    from tokenizers import Tokenizer

    file = Path(path) / "tokenizer.json"
    if file.exists():
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises nothing more exact
            raise WeightsError(
                f"{file} is not a tokenizer: {' '.join(str(error).split())[:300]}"
            ) from error
    if _local(path):
        raise WeightsError(
            f"{path} holds no tokenizer.json; expected the folder of a transformers checkpoint"
        )
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path).backend_tokenizer


def save_decoder(
    decoder: Decoder, folder: Path, end_token: int, context: int, dtype=torch.bfloat16
) -> None:
    """Writes a plain decoder as a Llama checkpoint that transformers reads: config.json and model.safetensors."""
    s = decoder.config
    if (
        s.qkv_bias
        or s.qk_norm
        or not torch.equal(decoder.frequency, frequencies(s))
        or decoder.scaling != 1
    ):
        raise WeightsError(
            "a decoder with biases, head norms or stretched rotary frequencies is no plain Llama; save it by transformers"
        )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": s.vocab,
        "hidden_size": s.width,
        "intermediate_size": s.hidden,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "rope_theta": s.rope_theta,
        "rms_norm_eps": s.norm_eps,
        "tie_word_embeddings": s.tied,
        "hidden_act": "silu",
        "max_position_embeddings": context,
        "bos_token_id": end_token,
        "eos_token_id": end_token,
        "dtype": str(dtype).removeprefix("torch."),
    }
    state = {theirs(k): v.to(dtype).contiguous().clone() for k, v in decoder.state_dict().items()}
    if s.tied:
        del state["lm_head.weight"]
    replace_json(folder / "config.json", config)
    with replacing(folder / "model.safetensors") as path:
        save_file(state, path, {"format": "pt"})


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file, or of a folder's safetensors in name order; of a packed one, of what it holds."""
    digest = hashlib.sha256()
    for file in weights_in(path) if path.is_dir() else [path]:
        if not file.exists():
            digest.update(content(file))
            continue
        with open(file, "rb") as opened:
            while piece := opened.read(1 << 22):
                digest.update(piece)
    return digest.hexdigest()


def identity(path: str | Path) -> str:
    """What names a checkpoint's weights: the hash of a local folder's, else the hub name it was given by."""
    return sha256(Path(path)) if Path(path).is_dir() else str(path)


def tokenizer_sha256(tokenizer) -> str:
    """Hex SHA-256 of a tokenizer's canonical JSON."""
    return hashlib.sha256(tokenizer.to_str(pretty=False).encode()).hexdigest()


def made_for(path: str | Path, decoder: Decoder, tokenizer) -> dict[str, str]:
    """What names a target for the parts that learn on it: hashes of weights, config (as far as we compute it) and tokenizer."""
    plain = torch.allclose(
        decoder.frequency.double().cpu(), frequencies(decoder.config), rtol=1e-6, atol=0
    )
    turned = (
        [] if plain else [f"{x:.5e}" for x in decoder.frequency.tolist()]
    )  # not to the last digit: libraries differ there
    config = json.dumps([asdict(decoder.config), turned, round(decoder.scaling, 6)], sort_keys=True)
    return {
        "weights": identity(path),
        "config": hashlib.sha256(config.encode()).hexdigest(),
        "tokenizer": tokenizer_sha256(tokenizer),
    }

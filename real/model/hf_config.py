"""Configs of transformers models, as far as our decoder supports them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from real.model.config import DecoderConfig

FAMILIES: dict[str, dict[str, bool]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
}
OPTIONAL_BIAS = ("llama", "qwen3")
"""Families whose `attention_bias` adds biases to all four projections of the attention."""
WINDOWED = ("mistral", "qwen2", "qwen3")
"""Families that know sliding-window attention."""
SCALINGS = ("linear", "yarn", "llama3")
"""Rotary scalings whose frequencies do not depend on the length of the sequence."""


class WeightsError(ValueError):
    """A checkpoint that cannot be used, and why."""


def decoder_config(config: Any) -> DecoderConfig:
    """The DecoderConfig of a transformers config; WeightsError for an unsupported family or
    option."""
    family = config.model_type
    if family not in FAMILIES:
        raise WeightsError(
            f"model type {family!r} is not supported; expected one of {', '.join(FAMILIES)}"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise WeightsError(
            "quantized weights (quantization_config) are not supported; "
            "use the checkpoint in float32 or bfloat16"
        )
    if getattr(config, "hidden_act", "silu") != "silu" or getattr(config, "mlp_bias", False):
        raise WeightsError("only SwiGLU without biases is supported; this config has another MLP")
    if bool(getattr(config, "attention_bias", False)) and family not in OPTIONAL_BIAS:
        raise WeightsError(
            f"attention_bias is unknown in family {family!r}; "
            f"expected it of {' or '.join(OPTIONAL_BIAS)} only"
        )
    attention_window(config)
    rope = _rope(config)
    biases = {}
    if getattr(config, "attention_bias", False):
        biases = {"qkv_bias": True, "output_bias": True}
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
        **FAMILIES[family] | biases,
    )


def attention_window(config: Any) -> int | None:
    """Tokens that sliding-window attention sees, itself included; None for full attention.

    WeightsError for other kinds of attention layers, and a window below 1.
    """
    if config.model_type not in WINDOWED:
        return None
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds - {"sliding_attention"}:
        raise WeightsError(
            f"attention layers of type {sorted(kinds)[0]!r} are not supported; "
            "expected full_attention or sliding_attention"
        )
    if config.model_type != "mistral" and not kinds:
        return None
    window = getattr(config, "sliding_window", None)
    if window is not None and (type(window) is not int or window < 1):
        raise WeightsError(f"sliding_window is {window!r:.40}; expected a number of tokens or null")
    return window


def max_context(config: Any) -> int:
    """Most tokens of a sequence: max_position_embeddings, or the attention window if it is smaller.

    Within its window, sliding-window attention is full attention.
    """
    longest = config.max_position_embeddings
    if type(longest) is not int or longest < 1:
        raise WeightsError(
            f"max_position_embeddings is {longest!r:.40}; expected a number of tokens"
        )
    return min(longest, attention_window(config) or longest)


def scaled_frequencies(config: Any) -> tuple[Tensor | None, float]:
    """Frequencies and scaling of configs that scale rotary positions; (None, 1) for others."""
    rope = _rope(config)
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return None, 1.0
    if kind not in SCALINGS:
        why = " changes with the length and" if kind in ("dynamic", "longrope") else ""
        raise WeightsError(
            f"rotary type {kind!r}{why} is not supported; "
            f"expected default, {', '.join(SCALINGS)}: use a model with one of these"
        )
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequency, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequency, float(scaling)


def _rope(config: Any) -> Mapping[str, Any]:
    rope = getattr(config, "rope_parameters", None) or {}
    share = rope.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None)
    if share not in (None, 1, 1.0):
        raise WeightsError(
            f"partial_rotary_factor {share} is not supported; expected heads that rotate whole"
        )
    return rope


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


def from_hf_name(name: str) -> str:
    """Our name of a parameter: `model.layers.3.mlp.up_proj.weight` -> `layers.3.up.weight`."""
    stem, kind = name.rsplit(".", 1)
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem):
        return f"layers.{match[1]}.{_LAYER[match[2]]}.{kind}"
    return f"{_OUTER[stem]}.{kind}"


def to_hf_name(name: str) -> str:
    """The inverse of `from_hf_name`."""
    stem, kind = name.rsplit(".", 1)
    if match := re.fullmatch(r"layers\.(\d+)\.(.+)", stem):
        return f"model.layers.{match[1]}.{_BACK[match[2]]}.{kind}"
    return f"{_BACK[stem]}.{kind}"


GENERATION = "generation_config.json"


def end_tokens(path: str | Path, vocab: int) -> tuple[int, ...]:
    """Every end token that the config or the generation config of a checkpoint names.

    The config's come first, without repetitions; () where neither names one. WeightsError for what
    is no token of the vocabulary, and for a damaged file.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    named = {
        "config.json": getattr(config, "eos_token_id", None),
        GENERATION: _generation_ends(path),
    }
    found: dict[int, None] = {}
    for file, ends in named.items():
        for token in ends if isinstance(ends, list | tuple) else [ends]:
            if token is None:
                continue
            if type(token) is not int or not 0 <= token < vocab:
                raise WeightsError(
                    f"{path}: eos_token_id in {file} is {token!r:.40}; expected a token of the "
                    f"vocabulary, 0 to {vocab - 1}: correct the file"
                )
            found[token] = None
    return tuple(found)


def _generation_ends(path: str | Path) -> Any:
    """eos_token_id of the generation config; None where there is no such file."""
    if not Path(path).is_dir():  # a hub name
        from transformers import GenerationConfig

        try:
            return GenerationConfig.from_pretrained(path).eos_token_id
        except OSError:
            return None
    file = Path(path) / GENERATION
    if not file.exists():
        return None
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))).get("eos_token_id")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise WeightsError(
            f"{file} is no generation config: {' '.join(str(error).split())[:200]}; fetch it again"
        ) from None

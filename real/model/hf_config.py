"""Configs of transformers models, as far as our decoder supports them."""

from collections.abc import Mapping
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
        raise WeightsError(f"sliding_window is {window!r}; expected a number of tokens or null")
    return window


def max_context(config: Any) -> int:
    """Most tokens of a sequence: max_position_embeddings, or the attention window if it is smaller.

    Within its window, sliding-window attention is full attention.
    """
    longest = config.max_position_embeddings
    if type(longest) is not int or longest < 1:
        raise WeightsError(f"max_position_embeddings is {longest!r}; expected a number of tokens")
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

"""Configs of transformers models, as far as our decoder supports them."""

import torch
from torch import Tensor

from real.model.config import DecoderConfig

FAMILIES = {"llama": {}, "mistral": {}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True}}


class WeightsError(ValueError):
    """A checkpoint that cannot be used, and why."""


def decoder_config(config) -> DecoderConfig:
    """The DecoderConfig of a transformers config; WeightsError for an unsupported family or
    option."""
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
            f"sliding-window attention ({window} tokens) is not supported; "
            "use a full-attention model"
        )
    if getattr(config, "hidden_act", "silu") != "silu" or getattr(config, "mlp_bias", False):
        raise WeightsError("only SwiGLU without biases is supported; this config has another MLP")
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


def scaled_frequencies(config) -> tuple[Tensor | None, float]:
    """Frequencies and scaling of configs that scale rotary positions; (None, 1) for others."""
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return None, 1.0
    if kind in ("dynamic", "longrope"):
        raise WeightsError(
            f"rotary type {kind!r} changes with the length and is not supported; "
            "use a model without it"
        )
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequency, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequency, float(scaling)

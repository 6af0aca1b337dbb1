"""Weights of EAGLE as its authors released them."""

import json
import math
from dataclasses import replace
from pathlib import Path

import torch

from real.drafters.eagle.head import EagleHead
from real.model.config import MAX_THETA
from real.model.decoder import Decoder
from real.model.draft_head import check_settings, fill, read_state
from real.model.hf_config import WeightsError
from real.model.hf_names import from_hf_name
from real.model.rotary import frequencies
from simspec.output.names import one_note


def published(folder: Path, target: Decoder) -> EagleHead:
    """An EagleHead from a checkpoint of SafeAILab/EAGLE (`cnets1`): config.json, model.safetensors.

    | tensor | meaning |
    | --- | --- |
    | fc.weight, fc.bias | FC; no bias where config.json has "bias": false |
    | layers.N.self_attn.q_proj.weight, .. | transformers' Llama names without "model." |
    | layers.0.input_layernorm.weight | optional |
    | embed_tokens.weight | frozen copy of the target's: compared within rounding, then dropped |

    WeightsError for anything else, for sizes or rotary frequencies other than the target's, and for
    later forms (EAGLE-3), which read other features.
    """
    config = _config(folder, target)
    state = {_ours(name): value for name, value in read_state(folder / "model.safetensors").items()}
    if "fc.weight" not in state:
        raise WeightsError(
            f"{folder} is no EAGLE checkpoint: model.safetensors lacks the tensor fc.weight"
        )
    layers = len({name.split(".")[1] for name in state if name.startswith("layers.")})
    if (stated := config.get("num_hidden_layers")) != layers:
        raise WeightsError(
            f"{folder} contradicts itself: config.json says {stated} layers, the tensors {layers}"
        )
    if "embed.weight" in state:
        copy = state.pop("embed.weight").float()
        embedding = target.embed.weight.detach().float().cpu()
        same_shape = copy.shape == embedding.shape
        if not same_shape or not (copy - embedding).norm() <= 0.02 * embedding.norm():
            raise WeightsError(
                f"{folder} was made for another target: "
                f"embed_tokens.weight {list(copy.shape)} is not its embedding"
            )
    bias, first_norm = bool(config.get("bias", True)), "layers.0.attention_norm.weight" in state
    try:
        check_settings({"norm_eps": config.get("rms_norm_eps", 1e-6), "layers": layers})
        head = EagleHead(
            target,
            layers=layers,
            bias=bias,
            first_norm=first_norm,
            norm_eps=config.get("rms_norm_eps", 1e-6),
        )
    except ValueError as error:
        raise WeightsError(
            f"{folder / 'config.json'} has settings that this target cannot have: "
            f"{one_note(error)[:300]}"
        ) from error
    fill(head, state, str(folder))
    return head.requires_grad_(False).eval()


def _config(folder: Path, target: Decoder) -> dict:
    """config.json, checked: its sizes and rotary frequencies are those of the target."""
    s = target.config
    try:
        config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        theta = float(config.get("rope_theta", 10000.0))
    except (OSError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WeightsError(
            f"{folder / 'config.json'} cannot be read: {' '.join(str(error).split())[:300]}"
        ) from error
    expected = {
        "hidden_size": s.width,
        "intermediate_size": s.hidden,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
    }
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    for key, size in expected.items():
        if config.get(key) != size:
            raise WeightsError(
                f"{folder} does not fit this target: "
                f"config.json says {key} {config.get(key)}, expected {size}"
            )
    unscaled = (
        math.isfinite(theta)
        and 0 < theta <= MAX_THETA
        and not config.get("rope_scaling")
        and target.scaling == 1
    )
    if not unscaled or not torch.allclose(
        frequencies(replace(s, rope_theta=theta)),
        target.frequency.double().cpu(),
        rtol=1e-6,
        atol=0,
    ):
        raise WeightsError(
            f"{folder} does not fit this target: "
            f"its rotary positions (rope_theta {theta:g}) are not those of the target"
        )
    return config


def _ours(name: str) -> str:
    """Our name of a released tensor, or the name itself, which `fill` then refuses."""
    try:
        return from_hf_name(f"model.{name}")
    except (KeyError, ValueError):
        return name

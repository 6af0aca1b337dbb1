"""EAGLE's draft head: decoder layers that extrapolate the target's features."""

import json
import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from real.model.config import MAX_THETA
from real.model.decoder import Decoder
from real.model.draft_head import DraftHead, check_settings, fill, read_state, write_published
from real.model.hf_config import WeightsError, from_hf_name, to_hf_name
from real.model.kv_cache import KVCache, StaticKVCache
from real.model.layer import DecoderLayer, Linear, frequencies
from simspec.output.names import one_note

INPUTS = ("feature&shifted_token", "feature&unshifted_token", "token", "feature")
"""What row i reads (EAGLE §5.3.2, Figure 10): (f_i, t_{i+1}), (f_i, t_i), t_{i+1} or f_i."""

MOST_POSITIONS = 1 << 15
"""Positions of an exported head whose target states no context."""


class EagleHead(DraftHead):
    """FC, then decoder layers: row i estimates f_{i+1}, from which the target predicts t_{i+2}.

    A feature f_i is the target's residual stream at token i after its final norm: what its head
    multiplies. Embedding and head stay the target's (EAGLE §4.1, arXiv 2401.15077).

    | setting | meaning |
    | --- | --- |
    | inputs | one of `INPUTS`; FC maps [embedding; feature], or one of them, to the width |
    | layers | decoder layers |
    | bias | of FC, as released |
    | first_norm | a norm in front of the first layer's attention; the released head has none |
    | norm_eps | of the layers' norms; None: the target's |

    The paper has no FC for single inputs; here it stays, so that the four differ in inputs alone.
    ValueError for other settings.
    """

    def __init__(
        self,
        target: Decoder,
        inputs: str = INPUTS[0],
        layers: int = 1,
        bias: bool = True,
        first_norm: bool = False,
        norm_eps: float | None = None,
    ):
        super().__init__()
        if inputs not in INPUTS:
            raise ValueError(f"inputs is {inputs!r}; expected one of {', '.join(INPUTS)}")
        if type(layers) is not int or layers < 1:
            raise ValueError(f"layers is {layers!r}; expected an integer, 1 or more")
        if norm_eps is not None and not (isinstance(norm_eps, float) and 0 < norm_eps < 1):
            raise ValueError(
                f"norm_eps is {norm_eps!r}; "
                "expected a small positive number, or None for the target's"
            )
        self.settings = {
            "inputs": inputs,
            "layers": layers,
            "bias": bias,
            "first_norm": first_norm,
            "norm_eps": norm_eps,
        }
        config = target.config if norm_eps is None else replace(target.config, norm_eps=norm_eps)
        self.inputs, self.shift = inputs, int("unshifted" not in inputs)
        self.fc = Linear(config.width * (1 + ("&" in inputs)), config.width, bias=bias)
        decoder_layers = [DecoderLayer(config) for _ in range(layers)]
        for layer in decoder_layers:
            for residual_writer in (layer.output, layer.down):
                nn.init.normal_(residual_writer.weight, std=0.02)
        self.layers = nn.ModuleList(decoder_layers)
        # embeddings are an order of magnitude smaller than features: both shall count at first
        sizes = [target.embed.weight.std()] if "token" in inputs else []
        sizes += [target.norm.weight.square().mean().sqrt()] if "feature" in inputs else []
        for columns, size in zip(self.fc.weight.data.chunk(len(sizes), 1), sizes):
            columns /= size.to(columns)
        if not first_norm:
            self.layers[0].attention_norm = nn.Identity()
        self.to(target.device, target.dtype)

    def output(self, target: Decoder) -> nn.Module:
        """The vocabulary head that multiplies estimates."""
        return self.shared_output(target)

    def estimate(
        self,
        target: Decoder,
        feature: Tensor,
        token: Tensor,
        rotation,
        mask: Tensor | None = None,
        cache: KVCache | StaticKVCache | None = None,
        start: int = 0,
    ) -> Tensor:
        """Estimated next features `[b, n, width]` of rows `feature [b, n, width]`, `token [b, n]`.

        Features and tokens are paired as `inputs` says.
        """
        inputs = [target.embed(token)] if "token" in self.inputs else []
        inputs += [feature] if "feature" in self.inputs else []
        x = self.fc(torch.cat(inputs, -1))
        for i, layer in enumerate(self.layers):
            x = layer(x, rotation, mask, cache, i, start)
        return x

    def teacher_forced(self, target: Decoder, feature: Tensor, token: Tensor) -> Tensor:
        """Estimates `[b, n, width]` of f_1 .. f_n from true features f_0 .. f_{n-1}.

        `feature [b, n, width]`, `token [b, n + 1]` t_0 .. t_n.
        """
        rows = feature.shape[1]
        rotation = target.rotation(torch.arange(rows, device=feature.device))
        return self.estimate(target, feature, token[:, self.shift : self.shift + rows], rotation)


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


def publish(head: EagleHead, target: Decoder, folder: Path) -> None:
    """Writes config.json and model.safetensors of vLLM's method `eagle`; `published` reads them.

    vLLM 0.32 (model_executor/models/llama_eagle.py) has an FC without a bias, no norm in front of
    the first layer, Llama layers, and the target's own embedding and head; any tensor `.bias` is
    dropped without a word. WeightsError, one line, naming what else this head needs.
    """
    s, settings = target.config, head.settings
    unserved = {
        f"inputs={head.inputs}": (head.inputs != INPUTS[0], f"train with --set inputs={INPUTS[0]}"),
        "a bias of FC": (head.fc.bias is not None, "train with --set bias=false"),
        "a first norm": (settings["first_norm"], "train with --set first_norm=false"),
        "a draft vocabulary": (
            head.draft_token is not None and len(head.draft_token) < s.vocab,
            f"simspec train eagle --from FOLDER --steps 0 --draft-vocab {s.vocab} keeps the "
            "weights, and drafts from all tokens",
        ),
        "layers with biases or head norms": (
            s.qkv_bias or s.output_bias or s.qk_norm,
            "expected a target of the Llama family",
        ),
        "scaled rotary positions": (
            target.scaling != 1 or not torch.equal(target.frequency, frequencies(s)),
            "expected a target with plain ones",
        ),
    }
    for what, (given, remedy) in unserved.items():
        if given:
            raise WeightsError(f"vLLM's method eagle takes no head with {what}: {remedy}")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": s.vocab,
        "hidden_size": s.width,
        "intermediate_size": s.hidden,
        "num_hidden_layers": len(head.layers),
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": settings["norm_eps"] or s.norm_eps,
        "rope_theta": s.rope_theta,
        "max_position_embeddings": target.context or MOST_POSITIONS,
        "tie_word_embeddings": False,
        "bias": False,
        "dtype": "float32",
    }
    state = {
        to_hf_name(name).removeprefix("model.") if name.startswith("layers.") else name: value
        for name, value in head.state_dict().items()
    }
    write_published(folder, config, state)


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

"""Reading and writing transformers checkpoints and their configs; nothing is unpickled."""

import json
import logging
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save_file
from torch import Tensor

from real.files import replace_json, replacing
from real.model.decoder import MOST, Decoder, DecoderConfig, frequencies
from real.model.stored_weights import MAX_RATIO, read_bytes
from real.model.stored_weights import WeightsError as WeightsError
from simspec.output.files import reraised

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
    with reraised(WeightsError, f"{file} is no generation config", "fetch it again"):
        return dict(json.loads(file.read_text(encoding="utf-8"))).get("eos_token_id")


ATTENTION = "eager"
"""transformers' attention where only weights are read: it needs no kernel."""


def from_transformers(model) -> Decoder:
    """A Decoder with the weights of a transformers causal language model (Llama, Mistral, Qwen2,
    Qwen3)."""
    config = decoder_config(model.config)
    frequency, scaling = scaled_frequencies(model.config)
    if frequency is None:
        frequency = frequencies(config)
    with torch.device("meta"):  # else initial weights would be drawn
        decoder = Decoder(config, frequency, scaling).to(model.dtype)
    decoder.to_empty(device="cpu")
    if config.tied:
        decoder.head.weight = decoder.embed.weight
    decoder.context, decoder.window = max_context(model.config), attention_window(model.config)
    state = {from_hf_name(k): v for k, v in model.state_dict().items()}
    if config.tied:
        state["head.weight"] = state["embed.weight"]
    decoder.load_state_dict(state)
    return decoder.requires_grad_(False).eval()


def load_config(path: str | Path) -> Any:
    """A checkpoint's transformers config; WeightsError where our decoder does not support it.

    Whatever it says, attention is transformers' own: a config may name a kernel from elsewhere.
    """
    from transformers import AutoConfig

    if _local(path) and not (Path(path) / "config.json").exists():
        raise WeightsError(
            f"{path} holds no config.json; expected the folder of a transformers checkpoint"
        )
    with _loading(path):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        decoder_config(config)
        config._attn_implementation, config._experts_implementation = ATTENTION, None
        return config


def load_decoder(path: str | Path, dtype=torch.float32, device="cpu") -> Decoder:
    """Loads a decoder from a checkpoint folder or hub name; safetensors only."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # our jobs report progress themselves
    config = load_config(path)
    _check_weights(Path(path), decoder_config(config))
    with _loading(path):
        model = pretrained(path, config, dtype=dtype, attn_implementation=ATTENTION)
        return from_transformers(model).to(device)


def check_same_vocabulary(path: str | Path, drafter: Decoder, target: Decoder) -> None:
    """WeightsError for the drafter at `path` where its vocabulary is not the target's."""
    if (vocab := drafter.config.vocab) != target.config.vocab:
        raise WeightsError(
            f"{path} has {vocab} tokens, the target {target.config.vocab}; use the same tokenizer"
        )


def pretrained(path: str | Path, config: Any, **options: Any) -> Any:
    """transformers' model of a checkpoint, whose weights may be in model.safetensors.xz;
    safetensors only, and no code of the checkpoint runs.

    WeightsError where a tensor is missing, unknown or of another shape.
    """
    import transformers

    no_reports()
    loaded: Any
    options |= {"config": config, "output_loading_info": True, "ignore_mismatched_sizes": True}
    packed = Path(path) / "model.safetensors.xz"
    if packed.exists() and not packed.with_suffix("").exists():
        kind = getattr(transformers, config.architectures[0])
        state = load(read_bytes(packed.with_suffix("")))
        loaded = kind.from_pretrained(None, state_dict=state, **options)
    else:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            path, use_safetensors=True, trust_remote_code=False, **options
        )
    model, info = loaded
    odd = [*info["missing_keys"], *info["unexpected_keys"]]
    odd += [name for name, *_ in info["mismatched_keys"]]
    if odd:
        raise WeightsError(
            f"weights and config do not match: {odd[0]} is missing, unknown or of another shape"
        )
    return model


def no_reports() -> None:
    """transformers prints no table of the names in a file: what is wrong with them is an error."""
    logging.getLogger("transformers.modeling_utils").addFilter(_is_error)


def _is_error(record: logging.LogRecord) -> bool:
    """At a level of ERROR transformers would check a plan of tensor parallelism, and report it."""
    return record.levelno >= logging.ERROR


def _check_weights(folder: Path, config: DecoderConfig) -> None:
    """WeightsError where a folder holds an adapter, or fewer bytes than its config's weights."""
    if not folder.is_dir():
        return
    if (folder / "adapter_config.json").exists():
        raise WeightsError(
            f"{folder} holds an adapter (adapter_config.json), expected a whole model: "
            "merge it into its base model"
        )
    packed = folder / "model.safetensors.xz"  # other files of the folder are no part of it
    held = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if packed.exists() and not packed.with_suffix("").exists():
        held = MAX_RATIO * packed.stat().st_size
    if held and held < (wanted := config.weights):
        raise WeightsError(
            f"{folder} cannot be loaded as a transformers checkpoint: its config asks for "
            f"{wanted:,} weights, its safetensors files are of {held:,} bytes; fetch it again"
        )


def _loading(path: str | Path) -> AbstractContextManager[None]:
    """transformers raises many types for a damaged config: all are WeightsErrors."""
    what = f"{path} cannot be loaded as a transformers checkpoint"
    return reraised(WeightsError, what, raised=Exception)


def _local(path: str | Path) -> bool:
    """Whether `path` is a folder: hub names have at most one slash and no leading dot or slash."""
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
        # tokenizers raises no narrower type
        with reraised(WeightsError, f"{file} is not a tokenizer", raised=Exception):
            tokenizer = Tokenizer.from_buffer(file.read_bytes())
            most = max(tokenizer.get_vocab().values(), default=0)
            if most >= MOST["vocab"]:  # writing it would take memory for every id below
                raise ValueError(f"it has the id {most}, expected ids below {MOST['vocab']}")
            return tokenizer
    if _local(path):
        raise WeightsError(
            f"{path} holds no tokenizer.json; expected the folder of a transformers checkpoint"
        )
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, trust_remote_code=False).backend_tokenizer


def plain_byte_level(written: str) -> str:
    """The tokenizer.json of a byte-level BPE, alike whichever release of transformers wrote it.

    Bytes that it has no token for are left out, as GPT-2's tokenizer does; some releases write a
    token for unknown ones instead, and steps that do nothing. Drafters are tied to the hash of this
    text. Every other tokenizer stays as it is.
    """
    from tokenizers import Tokenizer

    form = json.loads(written)
    first, last, model = form["pre_tokenizer"] or {}, form["decoder"] or {}, form["model"]
    last = last["decoders"][-1] if last.get("type") == "Sequence" else last
    steps = (form["normalizer"] or {"normalizers": []}).get("normalizers")
    falls_back = model["type"] != "BPE" or "<0x00>" in model["vocab"]
    if steps != [] or falls_back or {first.get("type"), last.get("type")} != {"ByteLevel"}:
        return written
    form |= {"normalizer": None, "pre_tokenizer": first | {"trim_offsets": True}, "decoder": last}
    model |= {"unk_token": None, "fuse_unk": False, "byte_fallback": False}
    model |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    return str(Tokenizer.from_str(json.dumps(form)).to_str(pretty=True))


def llama_config(s: DecoderConfig, context: int, dtype: torch.dtype) -> dict[str, Any]:
    """config.json of a Llama of these sizes, for sequences of `context` tokens."""
    return {
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
        "dtype": str(dtype).removeprefix("torch."),
    }


def save_decoder(
    decoder: Decoder, folder: Path, end_token: int | None, context: int, dtype=torch.bfloat16
) -> None:
    """Writes a plain decoder as a Llama checkpoint that transformers reads: config.json and
    model.safetensors."""
    s = decoder.config
    if (
        s.qkv_bias
        or s.output_bias
        or s.qk_norm
        or not torch.equal(decoder.frequency, frequencies(s))
        or decoder.scaling != 1
    ):
        raise WeightsError(
            "a decoder with biases, head norms or scaled rotary frequencies is no plain Llama; "
            "save it by transformers"
        )
    config = llama_config(s, context, dtype) | {
        "bos_token_id": end_token,
        "eos_token_id": end_token,
    }
    state = {
        to_hf_name(k): v.to(dtype).contiguous().clone() for k, v in decoder.state_dict().items()
    }
    if s.tied:
        state.pop("lm_head.weight", None)
    replace_json(folder / "config.json", config)
    with replacing(folder / "model.safetensors") as path:
        save_file(state, path, {"format": "pt"})

"""Reading and writing transformers checkpoints; nothing is unpickled."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from real.files import replace_json, replacing
from real.model.config import DecoderConfig
from real.model.decoder import Decoder
from real.model.hf_config import (
    WeightsError,
    attention_window,
    decoder_config,
    from_hf_name,
    max_context,
    scaled_frequencies,
    to_hf_name,
)
from real.model.layer import frequencies

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
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        decoder_config(config)
        config._attn_implementation, config._experts_implementation = ATTENTION, None
        return config
    except Exception as error:  # transformers raises many types for a damaged config
        raise _unusable(path, error) from error


def load_decoder(path: str | Path, dtype=torch.float32, device="cpu") -> Decoder:
    """Loads a decoder from a checkpoint folder or hub name; safetensors only."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # our jobs report progress themselves
    config = load_config(path)
    _check_weights(Path(path), decoder_config(config))
    try:
        # a pair with output_loading_info, unlike its annotation
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            trust_remote_code=False,
            attn_implementation=ATTENTION,
        )
        model, info = loaded
        odd = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
        if odd:
            raise WeightsError(
                f"weights and config do not match: {odd[0]} is missing, unknown or of another shape"
            )
        return from_transformers(model).to(device)
    except Exception as error:  # transformers raises many types for a damaged config
        raise _unusable(path, error) from error


def _check_weights(folder: Path, config: DecoderConfig) -> None:
    """WeightsError where a folder holds an adapter, or fewer bytes than its config's weights."""
    if not folder.is_dir():
        return
    if (folder / "adapter_config.json").exists():
        raise WeightsError(
            f"{folder} holds an adapter (adapter_config.json), expected a whole model: "
            "merge it into its base model"
        )
    held = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if held and held < (wanted := config.weights):
        raise WeightsError(
            f"{folder} cannot be loaded as a transformers checkpoint: its config asks for "
            f"{wanted:,} weights, its safetensors files are of {held:,} bytes; fetch it again"
        )


def _unusable(path: str | Path, error: Exception) -> WeightsError:
    reason = " ".join(str(error).split())[:300]
    return WeightsError(f"{path} cannot be loaded as a transformers checkpoint: {reason}")


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
        try:
            return Tokenizer.from_buffer(file.read_bytes())
        except Exception as error:  # tokenizers raises no narrower type
            raise WeightsError(
                f"{file} is not a tokenizer: {' '.join(str(error).split())[:300]}"
            ) from error
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
    state = {
        to_hf_name(k): v.to(dtype).contiguous().clone() for k, v in decoder.state_dict().items()
    }
    if s.tied:
        state.pop("lm_head.weight", None)
    replace_json(folder / "config.json", config)
    with replacing(folder / "model.safetensors") as path:
        save_file(state, path, {"format": "pt"})

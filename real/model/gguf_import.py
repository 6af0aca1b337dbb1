"""Conversion of GGUF files into checkpoints that transformers and our decoder read."""

from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from logging import CRITICAL
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file

from real.files import replace_json, replacing
from real.model.checkpoint import ATTENTION
from real.model.gguf_file import GGUFSummary
from real.model.hf_config import WeightsError, decoder_config

WEIGHTS = "model.safetensors"


def convert(path: Path, summary: GGUFSummary, folder: Path, dtype: torch.dtype) -> int:
    """Writes weights, config, generation config and tokenizer of a GGUF file into `folder`.

    The values are those of the GGUF file, rounded to `dtype`; a tied head is left out. Returns the
    number of parameters. WeightsError for what transformers cannot convert.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with TemporaryDirectory() as alone, _silence():
        # nothing but this file is read: files beside it could be of another model
        (Path(alone) / "model.gguf").symlink_to(path.resolve())
        asked = {"gguf_file": "model.gguf", "trust_remote_code": False}
        try:
            # a pair with output_loading_info, unlike its annotation
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                alone,
                dtype=torch.float32,
                output_loading_info=True,
                attn_implementation=ATTENTION,
                **asked,
            )
            tokenizer: Any = AutoTokenizer.from_pretrained(alone, **asked)
        except Exception as error:  # transformers raises whatever it meets first
            reason = " ".join(str(error).split())[:300]
            raise WeightsError(f"{path} cannot be converted by transformers: {reason}") from error
    model, info = loaded
    odd = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
    if odd:
        raise WeightsError(
            f"{path}: weights and architecture do not match: "
            f"{odd[0]} is missing, unknown or of another shape"
        )
    config = model.config
    if hasattr(config, "quantization_config"):  # the weights are plain numbers now
        del config.quantization_config
    decoder_config(config)
    _save_weights(model, folder / WEIGHTS, dtype)
    _save_configs(config, summary, folder, dtype)
    tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


@contextmanager
def _silence() -> Iterator[None]:
    """Neither progress bars nor reports of transformers; what is odd is said in one line."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(CRITICAL)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)


def _save_weights(model: Any, file: Path, dtype: torch.dtype) -> None:
    tied = bool(model.config.tie_word_embeddings)
    state = {
        name: value.to(dtype).contiguous()
        for name, value in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
    for name, value in state.items():
        if not value.isfinite().all():
            raise WeightsError(f"tensor {name} is not of finite numbers; fetch the file again")
    with replacing(file) as temporary:
        save_file(state, temporary, {"format": "pt"})


def _save_configs(config: Any, summary: GGUFSummary, folder: Path, dtype: torch.dtype) -> None:
    ends = list(summary.end_tokens)
    values = config.to_dict() | {
        "architectures": [_class_name(config)],
        "dtype": str(dtype).removeprefix("torch."),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
    }
    for key in ("_model_name_or_path", "transformers_version", "id2label", "label2id"):
        values.pop(key, None)
    replace_json(folder / "config.json", values)
    tokens = ("bos_token_id", "eos_token_id", "pad_token_id")
    replace_json(folder / "generation_config.json", {name: values.get(name) for name in tokens})


def _class_name(config: Any) -> str:
    """The class of causal language models of a config, by name."""
    from transformers import AutoModelForCausalLM

    kind: Any = AutoModelForCausalLM._model_mapping[type(config)]
    return kind.__name__

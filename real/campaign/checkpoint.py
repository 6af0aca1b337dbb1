"""A campaign's target that exists already: a checkpoint folder, or a GGUF file."""

import re
import shutil
from pathlib import Path

from real.files import replacing
from real.jobs.import_model import import_gguf
from real.progress import Progress, quiet
from real.prompts import PromptFormat, load_chat_template

FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "card.json",
    "model.safetensors",
)
"""Files of a checkpoint, the weights last: with them it is complete."""


class CheckpointError(ValueError):
    """A folder that is no checkpoint in one safetensors file."""


def check_checkpoint(folder: Path) -> None:
    """CheckpointError unless the folder has a config, a tokenizer and model.safetensors.

    A .gguf file will do as well.
    """
    if folder.suffix == ".gguf" and folder.is_file():
        return
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{folder} holds no {name}; expected a .gguf file, or a transformers checkpoint "
                "in one safetensors file"
            )


def take_checkpoint(source: Path, folder: Path, progress: Progress = quiet) -> None:
    """Copies a checkpoint's files, each whole or not at all, or imports a .gguf file."""
    check_checkpoint(source)
    if source.suffix == ".gguf":
        import_gguf(source, folder, progress=progress)
        return
    for name in FILES:
        if (source / name).is_file():
            with replacing(folder / name) as temporary:
                shutil.copyfile(source / name, temporary)


def checkpoint_name(source: Path) -> str:
    """Letters and digits of its name, for the names of its recordings: smollm2."""
    name = source.parent.name if source.name == "target" else source.stem
    return re.sub("[^a-z0-9]", "", name.lower()) or "target"


def weights_of(source: Path) -> Path:
    """The file that holds the weights."""
    return source if source.suffix == ".gguf" else source / "model.safetensors"


def prompt_format(folder: Path, tokenizer) -> PromptFormat:
    """How prompts become tokens for a given target: by its chat template, where it has one."""
    return PromptFormat(tokenizer, load_chat_template(folder))

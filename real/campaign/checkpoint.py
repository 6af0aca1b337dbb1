"""A campaign's target that exists already: its checkpoint, and what its drafters learn from."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from real.files import replacing
from real.prompts import PromptFormat, load_chat_template
from real.train.prompt_set import PromptSources
from real.train.target_data import TargetData, load_target, longest_prompt, target_data

if TYPE_CHECKING:
    from real.campaign.workspace import Workspace

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
    """CheckpointError unless the folder has a config, a tokenizer and model.safetensors."""
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{folder} holds no {name}; expected a transformers checkpoint in one safetensors "
                "file, as simspec import-model writes it"
            )


def copy_checkpoint(source: Path, folder: Path) -> None:
    """Copies a checkpoint's files, each whole or not at all; nothing else of the folder."""
    check_checkpoint(source)
    for name in FILES:
        if (source / name).is_file():
            with replacing(folder / name) as temporary:
                shutil.copyfile(source / name, temporary)


def prompt_format(folder: Path, tokenizer) -> PromptFormat:
    """How prompts become tokens for a given target: by its chat template, where it has one."""
    return PromptFormat(tokenizer, load_chat_template(folder))


def drafter_data(workspace: "Workspace") -> TargetData:
    """The sequences that the given target writes behind prompts and text for its drafters."""
    config = workspace.train_config
    target = load_target(workspace.models / "target", workspace.device)
    longest = longest_prompt(target.context, config.new_tokens, workspace.config.recording.longest)
    form = prompt_format(workspace.models / "target", target.tokenizer)
    sources = PromptSources(workspace.training_prompts, config.text, form, longest, workspace.seed)
    return target_data(config, target, sources, workspace.work, workspace.progress)

"""Learnt parts of drafters that stand on a target: stored with what they were made for, loaded with every tensor checked."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor, nn

from real.files import replace_json, replacing
from real.model.checkpoint import WeightsError
from real.model.compressed import content, is_there
from real.model.decoder import Decoder

SAID = ("tokenizer", "config", "weights")
"""What names a target, in the order in which differences are told (`real.model.checkpoint.made_for`)."""


def save_draft_head(
    part: nn.Module, folder: Path, name: str, made_for: Mapping[str, str], dtype=torch.bfloat16
) -> None:
    """Writes <name>.safetensors and <name>.json: `part.settings`, with which it is built again, and whom it was made for."""
    with replacing(folder / f"{name}.safetensors") as path:
        save_file({k: v.to(dtype).contiguous().clone() for k, v in part.state_dict().items()}, path)
    replace_json(folder / f"{name}.json", {"settings": part.settings, "target": dict(made_for)})


def settings_of(folder: str | Path, name: str, made_for: Mapping[str, str]) -> dict:
    """The settings that <name>.json in `folder` holds; WeightsError where it is missing, damaged, or was made for another target."""
    folder = Path(folder)
    try:
        said = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        settings, there = dict(said["settings"]), dict(said["target"])
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise WeightsError(
            f"{folder} holds no drafter {name!r} ({name}.json): {_line(error)}"
        ) from error
    for what in SAID:
        if there.get(what) != made_for.get(what):
            whose, mine = str(there.get(what))[:12], str(made_for.get(what))[:12]
            raise WeightsError(
                f"{folder} was made for a target with {what} {whose}, this one has {mine}; train it again for this one"
            )
    return settings


def load_draft_head(
    make: Callable[..., nn.Module],
    folder: str | Path,
    name: str,
    target: Decoder,
    made_for: Mapping[str, str],
) -> nn.Module:
    """`make(target, **settings)` with the weights that lie in `folder`, frozen, in the target's dtype and on its device.

    WeightsError, one line, for files that are missing or damaged, that were made for another target (by tokenizer, config or weights),
    or whose tensors are missing, unknown, of another shape or not finite.
    """
    folder = Path(folder)
    settings = settings_of(folder, name, made_for)
    try:
        part = make(target, **settings)
    except (RuntimeError, ValueError, TypeError) as error:
        raise WeightsError(
            f"{folder / name}.json has settings that this target cannot have: {_line(error)}"
        ) from error
    fill(part, read_state(folder / f"{name}.safetensors"), str(folder))
    return part.to(target.device, target.dtype).requires_grad_(False).eval()


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, plain or packed; WeightsError where it is missing, damaged, or lies there as a pickle only."""
    if not is_there(path):
        pickles = (
            [p.name for p in path.parent.glob("*") if p.suffix in (".bin", ".pt", ".pth")]
            if path.parent.is_dir()
            else []
        )
        hint = (
            f"{pickles[0]} is a pickle, which is never opened: convert it to safetensors"
            if pickles
            else "no such file"
        )
        raise WeightsError(f"{path} cannot be read: {hint}")
    try:
        return load_file(path) if path.exists() else load(content(path))
    except (OSError, ValueError, SafetensorError) as error:
        raise WeightsError(f"{path} is damaged or no safetensors file: {_line(error)}") from error


def fill(part: nn.Module, state: Mapping[str, Tensor], whose: str) -> None:
    """Copies `state` into `part`; WeightsError naming the first tensor that is missing, unknown, of another shape or not finite."""
    wanted = part.state_dict()
    for name in sorted(wanted.keys() | state.keys()):
        if name not in state:
            raise WeightsError(
                f"{whose} lacks the tensor {name} {list(wanted[name].shape)}; fetch or train it again"
            )
        if name not in wanted:
            shape = list(state[name].shape)
            raise WeightsError(
                f"{whose} has a tensor {name} {shape} that this drafter does not know; use a matching checkpoint"
            )
        if state[name].shape != wanted[name].shape:
            there, here = list(state[name].shape), list(wanted[name].shape)
            raise WeightsError(
                f"{whose} does not fit this target: {name} is {there}, expected {here}"
            )
        if not state[name].is_floating_point() or not state[name].isfinite().all():
            raise WeightsError(
                f"{whose} has a tensor {name} that is not of finite numbers; fetch or train it again"
            )
    part.load_state_dict({name: value.to(wanted[name]) for name, value in state.items()})


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]

"""Reading and writing draft heads: trained drafter weights, stored with the hashes of their
target."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor, nn

from real.files import replace_json, replacing
from real.model.compressed import read_bytes, weights_exist
from real.model.decoder import Decoder
from real.model.hf_config import WeightsError

TARGET_HASHES = ("tokenizer", "config", "weights")
"""The hashes of a target (`real.model.fingerprint.made_for`), in the order in which they are
checked."""


def save_draft_head(
    part: nn.Module, folder: Path, name: str, made_for: Mapping[str, str], dtype=torch.bfloat16
) -> None:
    """Writes <name>.safetensors and <name>.json: the head's settings, and the hashes of its
    target."""
    with replacing(folder / f"{name}.safetensors") as path:
        save_file({k: v.to(dtype).contiguous().clone() for k, v in part.state_dict().items()}, path)
    replace_json(folder / f"{name}.json", {"settings": part.settings, "target": dict(made_for)})


def settings_of(folder: str | Path, name: str, made_for: Mapping[str, str]) -> dict:
    """The settings in <name>.json; WeightsError if missing, damaged, or made for another target."""
    folder = Path(folder)
    try:
        stored = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        settings, there = dict(stored["settings"]), dict(stored["target"])
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise WeightsError(
            f"{folder} holds no drafter {name!r} ({name}.json): {_line(error)}"
        ) from error
    for what in TARGET_HASHES:
        if there.get(what) != made_for.get(what):
            whose, mine = str(there.get(what))[:12], str(made_for.get(what))[:12]
            raise WeightsError(
                f"{folder} was made for a target with {what} {whose}, this one has {mine}; "
                "train it again for this one"
            )
    return settings


def load_draft_head(
    make: Callable[..., nn.Module],
    folder: str | Path,
    name: str,
    target: Decoder,
    made_for: Mapping[str, str],
) -> nn.Module:
    """`make(target, **settings)` with the weights in `folder`, frozen, in the target's dtype and on
    its device.

    WeightsError for files that are missing, damaged or made for another target, and for tensors
    that are missing, unknown, of another shape or not finite.
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
    """The tensors of a safetensors file, compressed or not; WeightsError if missing, damaged or a
    pickle."""
    if not weights_exist(path):
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
        return load_file(path) if path.exists() else load(read_bytes(path))
    except (OSError, ValueError, SafetensorError) as error:
        raise WeightsError(f"{path} is damaged or no safetensors file: {_line(error)}") from error


def fill(part: nn.Module, state: Mapping[str, Tensor], whose: str) -> None:
    """Copies `state` into `part`; WeightsError for a tensor that is missing, unknown, misshapen or
    not finite."""
    wanted = part.state_dict()
    for name in sorted(wanted.keys() | state.keys()):
        if name not in state:
            raise WeightsError(
                f"{whose} lacks the tensor {name} {list(wanted[name].shape)}; "
                "fetch or train it again"
            )
        if name not in wanted:
            shape = list(state[name].shape)
            raise WeightsError(
                f"{whose} has a tensor {name} {shape} that this drafter does not know; "
                "use a matching checkpoint"
            )
        if state[name].shape != wanted[name].shape:
            there, here = list(state[name].shape), list(wanted[name].shape)
            raise WeightsError(
                f"{whose} does not fit this target: {name} is {there}, expected {here}"
            )
        if not state[name].is_floating_point() or not state[name].isfinite().all():
            raise WeightsError(
                f"{whose} has a tensor {name} that is not of finite numbers; "
                "fetch or train it again"
            )
    part.load_state_dict({name: value.to(wanted[name]) for name, value in state.items()})


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]

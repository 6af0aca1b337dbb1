"""Reading and writing acceptance predictors in a drafter's folder."""

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from real.decode.acceptance_predictor import PREDICTOR_NAMES, AcceptancePredictor, parameter_count
from real.files import replace_json, replacing
from real.model.compressed import read_bytes, weight_files
from real.model.fingerprint import sha256
from real.model.hf_config import WeightsError


def drafter_identity(folder: str | Path) -> str:
    """Hex SHA-256 of a drafter's weights without predictors: of its one file, or of its files'
    hashes."""
    files = [path for path in weight_files(folder) if path.stem not in PREDICTOR_NAMES]
    if len(files) == 1:
        return sha256(files[0])
    return hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()


def save_predictor(
    predictor: AcceptancePredictor,
    folder: Path,
    name: str,
    target: str,
    training: dict | None = None,
) -> None:
    """Writes <name>.safetensors and <name>.json (form, sizes, target, drafter, training) to the
    drafter's folder."""
    with replacing(folder / f"{name}.safetensors") as path:
        path.write_bytes(predictor.to_bytes())
    sizes = {
        key: getattr(predictor, key)
        for key in ("form", "target_width", "drafter_width", "rank", "depths", "sha256")
    }
    models = {"target": target, "drafter": drafter_identity(folder)}
    replace_json(folder / f"{name}.json", sizes | models | {"training": training or {}})


def load_predictor(folder: str | Path, name: str, target: str, device="cpu") -> AcceptancePredictor:
    """The predictor `name` in the drafter's `folder`; WeightsError if damaged, or trained for other
    models."""
    folder = Path(folder)
    both = f"{folder / name}.json and .safetensors"
    try:
        stored = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        weights = read_bytes(folder / f"{name}.safetensors")
        sizes = [stored[key] for key in ("target_width", "drafter_width", "rank", "depths")]
        trained_for = stored["target"], stored["drafter"]
        if 2 * parameter_count(*sizes) > len(
            weights
        ):  # checked before allocation: a .json can claim any size
            raise ValueError(f"{len(weights)} bytes of weights are too few for the sizes {sizes}")
        predictor = AcceptancePredictor(*sizes)
        if stored["form"] != predictor.form:
            raise ValueError(f"form is {stored['form']!r} at rank {predictor.rank}")
        if hashlib.sha256(weights).hexdigest() != stored["sha256"]:
            raise ValueError("the weights differ from those that the .json names")
        state = load(weights)
        if not all(v.dtype == torch.bfloat16 and v.isfinite().all() for v in state.values()):
            raise ValueError("a weight is not a finite bfloat16 number")
        predictor.load_state_dict({k: v.double() for k, v in state.items()})
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
        RecursionError,
        SafetensorError,
    ) as error:
        reason = str(error).splitlines()[-1].strip()[:200]
        raise WeightsError(f"{both} are not a predictor: {reason}; train it again") from error
    models = target, drafter_identity(folder)
    for role, wanted, given in zip(("target", "drafter"), trained_for, models):
        if wanted != given:
            raise WeightsError(
                f"{both} were trained for the {role} {str(wanted)[:12]}, this one is {given[:12]}; "
                "train them again"
            )
    return predictor.requires_grad_(False).to(device)


def load_predictors(
    folder: str | Path, target: str, device="cpu"
) -> dict[str, AcceptancePredictor]:
    """All predictors in a drafter's folder, by feature name; empty for a drafter from a hub."""
    return {
        name: load_predictor(folder, name, target, device)
        for name in PREDICTOR_NAMES
        if (Path(folder) / f"{name}.json").exists()
    }

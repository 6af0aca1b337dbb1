"""Storing a drafter's weights as int8."""

import shutil
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from real.decode.acceptance_predictor import PREDICTOR_NAMES
from real.files import replace_json, replacing
from real.model.compressed import weight_files
from real.model.draft_head import read_state
from real.model.fingerprint import sha256
from real.model.int8 import from_int8, to_int8


def quantize_drafter(folder: Path, out: Path) -> dict:
    """Copies a drafter's folder with its draft head as int8, and returns the new card.

    | key | meaning |
    | --- | --- |
    | stored, source_sha256 | int8; the hash of the original weights |
    | relative_error | by matrix, the norm of the change over that of the original |

    Its evaluation is left out of the card: record it again for its acceptance. ValueError for a
    folder without a draft head, and an `out` that holds files.
    """
    heads = [path for path in weight_files(folder) if path.stem not in PREDICTOR_NAMES]
    if len(heads) != 1 or not (folder / f"{heads[0].stem}.json").exists():
        raise ValueError(
            f"{folder} holds no draft head; expected the folder of early_exit, eagle, medusa, "
            "hydra or glide, as simspec train writes it"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} holds files already; name a new folder by --out")
    state = read_state(heads[0])
    stored = to_int8(state)
    card = {
        "stored": "int8",
        "source": folder.name,
        "source_sha256": sha256(heads[0]),
        "relative_error": _errors(state, from_int8(stored, str(folder))),
    }
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.stem != "card" and not path.name.startswith(heads[0].name):
            with replacing(out / path.name) as temporary:
                shutil.copyfile(path, temporary)
    replace_json(out / "card.json", card)
    with replacing(out / heads[0].name) as temporary:
        save_file(stored, temporary)
    return card | {"bytes": (out / heads[0].name).stat().st_size}


def _errors(state: dict[str, Tensor], read: dict[str, Tensor]) -> dict[str, float]:
    """Norm of the change over the norm of the original, by matrix that is not zero."""
    changes = {
        name: (float((read[name] - value.float()).norm()), float(value.float().norm()))
        for name, value in state.items()
        if value.ndim == 2 and value.is_floating_point()
    }
    return {name: round(change / norm, 6) for name, (change, norm) in changes.items() if norm}

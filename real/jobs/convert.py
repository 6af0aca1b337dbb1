"""Converting weights: a checkpoint from a GGUF file and back, a drafter stored as int8."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from real.decode.acceptance_predictor import PREDICTOR_NAMES
from real.files import replace_json, replacing
from real.jobs.models import dtype_of
from real.model.checkpoint import load_decoder, load_tokenizer
from real.model.draft_head import read_state
from real.model.gguf import check_packages, convert, read_summary
from real.model.gguf_export import write_gguf
from real.model.stored_weights import from_int8, sha256, to_int8, tokenizer_sha256, weight_files
from real.progress import Progress, quiet
from real.provenance import versions

CARD = "card.json"
STEPS = 4


def import_gguf(file: Path, out: Path, dtype: str = "float32", progress: Progress = quiet) -> dict:
    """Converts a GGUF file into the checkpoint folder `out`, and returns its card.

    A folder that was made of the same file and dtype is left as it is. ValueError where `out` holds
    anything else, for a missing package, and as `read_summary` and `convert` raise it.
    """
    number_type = dtype_of(dtype)
    if not file.is_file():
        raise ValueError(f"{file} is no file; expected one that ends in .gguf")
    digest = sha256(file)
    card = _finished(out, digest, dtype)
    if card is not None:
        return card
    check_packages()
    label = f"importing {file.name}"
    progress(label, 1, STEPS)
    summary = read_summary(file)
    progress(label, 2, STEPS)
    part = out.with_name(f".{out.name}.part")  # a killed import leaves it; the next one starts anew
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        parameters = convert(file, summary, part, number_type)
        progress(label, 3, STEPS)
        load_decoder(part)
        card = {
            "source": file.name,
            "source_sha256": digest,
            "dtype": dtype,
            **{key: value for key, value in asdict(summary).items() if key != "numbers"},
            "end_tokens": list(summary.end_tokens),
            "parameters": parameters,
            "weights_sha256": sha256(part),
            "tokenizer_sha256": tokenizer_sha256(load_tokenizer(part)),
            "versions": versions(),
        }
        replace_json(part / CARD, card)
        if out.is_dir():
            out.rmdir()  # it is empty
        os.replace(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    progress(label, STEPS, STEPS)
    return card


def _finished(out: Path, digest: str, dtype: str) -> dict | None:
    """The card of an import of that file that is complete; None where `out` is free."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    try:
        card = dict(json.loads((out / CARD).read_text(encoding="utf-8")))
        same = (card.get("source_sha256"), card.get("dtype")) == (digest, dtype)
        if same and card.get("weights_sha256") == sha256(out):
            return card
    except (OSError, ValueError, TypeError, RecursionError):
        pass
    raise ValueError(
        f"{out} exists and holds something else than this import; delete it, or name another --out"
    )


def export_gguf(folder: Path, tokenizer_of: Path, out: Path, dtype: str = "float32") -> dict:
    """Writes a Llama checkpoint as a GGUF file, and returns its weights, draft vocabulary and hash.

    ValueError for a missing package or file, and as `write_gguf` raises it.
    """
    check_packages()
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; expected a transformers checkpoint")
    return asdict(write_gguf(folder, tokenizer_of, out, dtype)) | {"sha256": sha256(out)}


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

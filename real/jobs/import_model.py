"""Importing a model from a file of another format."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from real.files import replace_json
from real.jobs.models import dtype_of
from real.model.checkpoint import load_decoder, load_tokenizer
from real.model.fingerprint import sha256, tokenizer_sha256
from real.model.gguf_file import check_packages, read_summary
from real.model.gguf_import import convert
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

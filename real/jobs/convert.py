"""Converting weights: a checkpoint from a GGUF file and back, drafters for engines and as int8."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, cast

from safetensors.torch import save_file
from torch import Tensor

from real.decode.acceptance_predictor import PREDICTOR_NAMES
from real.drafters import BUILTIN, eagle, medusa, model
from real.engines.adapter import served_form
from real.files import replace_json, replacing
from real.model.checkpoint import load_decoder, load_tokenizer
from real.model.draft_head import load_vocabulary, read_state
from real.model.gguf import check_packages, convert, read_summary, write_gguf
from real.model.hf_config import end_tokens
from real.model.stored_weights import from_int8, sha256, to_int8, tokenizer_sha256, weight_files
from real.model_settings import dtype_of
from real.pair import load_pair
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
    with _whole_folder(out) as part:
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
    progress(label, STEPS, STEPS)
    return card


@contextmanager
def _whole_folder(out: Path) -> Iterator[Path]:
    """A folder that becomes `out`, missing or empty until then, at the end or not at all."""
    part = out.with_name(f".{out.name}.part")  # a killed job leaves it; the next one starts anew
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        if out.is_dir():
            out.rmdir()  # it is empty
        os.replace(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


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


SERVED = {"model": ("vllm", "transformers", "llamacpp"), "eagle": ("vllm",), "medusa": ("vllm",)}
"""Engines that load a drafter of ours as it drafts, by the drafter's name."""
UNSERVED = {
    "early_exit": ("exit.json", "engines have no head after one of the target's own layers"),
    "glide": ("glide.json", "engines have no draft layer that reads the target's KV cache"),
    "hydra": ("hydra.json", "vLLM's method medusa has no heads that read drafted tokens"),
    "lookahead": ("lookahead.json", "engines have no Jacobi window in the target's pass"),
    "prompt_lookup": ("prompt_lookup.json", "it has no weights; engines draft n-grams themselves"),
    "self_skip": ("self_skip.json", "engines do not leave out layers of the target"),
    "suffix": ("suffix.json", "it has no weights; vLLM runs it by simspec's proposer"),
    "sorted": ("sorted.json", "engines have no exits within a draft model"),
}
"""Files that name the other drafters, and why no engine loads them."""


def drafter_of(folder: Path) -> str:
    """The drafter of a folder, or of a name in a folder's place; "" if unknown."""
    files = {"eagle": "eagle.json", "medusa": "medusa.json"}
    files |= {name: file for name, (file, _) in UNSERVED.items()}
    if not folder.is_dir():
        return folder.name if str(folder) in BUILTIN else ""
    held = [name for name, file in files.items() if (folder / file).exists()]
    if held or not (folder / "config.json").exists():
        return held[0] if held else ""
    return {"draft_model": "model"}.get(form := served_form(folder), form)


def export_drafter(folder: Path, target: Path, engine: str, out: Path) -> dict:
    """Writes a trained drafter in the form that an engine loads, and returns what it wrote.

    | drafter | engine | written |
    | --- | --- | --- |
    | model | vllm, transformers | `out`: a Llama checkpoint |
    | model | llamacpp | `out`: a GGUF file, with the tokenizer of the GGUF file `target` |
    | eagle, medusa | vllm | `out`: config.json and model.safetensors |

    ValueError for a drafter that the engine does not load, by name, an `out` that holds files, and
    as loading the drafter raises it.
    """
    name = drafter_of(folder)
    engines = sorted({engine for held in SERVED.values() for engine in held})
    if engine not in engines:
        raise ValueError(f"engine is {engine!r}, expected one of {', '.join(engines)}")
    if not name:
        raise ValueError(f"{folder} holds no drafter; expected a folder of simspec train")
    if engine not in SERVED.get(name, ()):
        _refuse(name, engine)
    written = {"drafter": name, "engine": engine}
    if engine == "llamacpp":
        return written | export_gguf(folder, target, out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} holds files already; name a new folder by --out")
    if not target.is_dir():
        raise ValueError(f"{target} is no folder; expected the target's transformers checkpoint")
    pair = load_pair(folder, name, target=target, weights=folder)
    decoder, drafter = pair.target.decoder, cast(Any, pair.drafter)
    with _whole_folder(out) as part:
        if name == "model":
            token = load_vocabulary(folder, decoder.config.vocab)
            ends = end_tokens(folder, decoder.config.vocab)
            model.publish(drafter, decoder.context or 2048, ends[0] if ends else None, part)
        else:
            token = drafter.head.draft_token
            publish = eagle.publish if name == "eagle" else medusa.publish
            publish(drafter.head, decoder, part)
    return written | {
        "draft_vocab": None if token is None else len(token),
        "bytes": (out / "model.safetensors").stat().st_size,
        "sha256": sha256(out),
    }


def _refuse(name: str, engine: str) -> NoReturn:
    """ValueError saying why the engine does not load the drafter, and what does instead."""
    if name in SERVED:
        raise ValueError(
            f"{engine} loads no {name} heads, only draft models: give --engine "
            f"{' or '.join(SERVED[name])}, or train the drafter model"
        )
    if name == "prompt_lookup":
        raise ValueError(f"{name}: {UNSERVED[name][1]}: simspec engine run --drafter ngram:1,3")
    why = UNSERVED[name][1] if name in UNSERVED else "engines have no such method"
    raise ValueError(
        f"{engine} loads no {name} drafter: {why}. A subclass of simspec's PolicyProposer can run "
        "it inside vLLM (real/engines/hosted_proposer.py), or train model, eagle or medusa"
    )


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

"""Trained drafters in the form that a released engine loads."""

from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast

from real.drafters import BUILTIN, eagle, medusa, model
from real.engines.adapter import RELEASED, find_environment, served_form
from real.files import whole_folder
from real.model.checkpoint import end_tokens
from real.model.draft_head import load_vocabulary
from real.model.stored_weights import sha256
from real.pair import load_pair
from simspec.engines.exports import GONE, check_method

SERVED = {"model": ("vllm", "transformers"), "eagle": ("vllm",), "medusa": ("vllm",)}
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

    `out` gets config.json and model.safetensors; a draft model's are a Llama checkpoint.
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
    if name in GONE:
        version = ""
        with suppress(ValueError):  # where there is no environment the versions are named alone
            version = find_environment(RELEASED[engine]).version
        check_method(name, version)
        written["versions"] = f"below {GONE[name]}"
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} holds files already; name a new folder by --out")
    if not target.is_dir():
        raise ValueError(f"{target} is no folder; expected the target's transformers checkpoint")
    pair = load_pair(folder, name, target=target, weights=folder)
    decoder, drafter = pair.target.decoder, cast(Any, pair.drafter)
    with whole_folder(out) as part:
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

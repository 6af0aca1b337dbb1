"""Prompts that a target continues for its drafters: from prompt files, and windows of text."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from real.files import read_card, replace_json, replacing
from real.model.stored_weights import sha256
from real.progress import Progress, quiet
from real.prompts import LeftOut, PromptFormat, read_prompts
from real.train.corpus import documents

WINDOW = 64
"""Tokens of a prompt that is cut from text; shorter ends of documents are left out."""
LEAST = 8
"""Prompts: two of them are held out, one to choose weights by and one to evaluate."""
FILE = "prompts.safetensors"


@dataclass(frozen=True)
class PromptSet:
    """Different prompts, split into those for training drafters and those held out.

    | field | meaning |
    | --- | --- |
    | training, heldout | tokens of each prompt; no prompt is in both |
    | source | files by name with their hashes, and counts, for cards |
    """

    training: tuple[list[int], ...]
    heldout: tuple[list[int], ...]
    source: dict

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of all prompts and their split."""
        digest = hashlib.sha256()
        for part in (self.training, self.heldout):
            for prompt in part:
                digest.update(np.array([len(prompt), *prompt], np.int64).tobytes())
            digest.update(b"|")
        return digest.hexdigest()


@dataclass(frozen=True)
class PromptSources:
    """Sources of prompts: JSON lines as `simspec record` reads them, and text files.

    | field | meaning |
    | --- | --- |
    | prompts, text | JSON-lines files of prompts; text as `real.train.corpus.documents` reads it |
    | form | tokenizer and chat template |
    | longest | longer prompts of files are left out |
    | seed | of the order and the split |
    """

    prompts: Sequence[Path]
    text: Sequence[str]
    form: PromptFormat
    longest: int
    seed: int = 0


def split_prompts(prompts: Sequence[list[int]], source: dict, seed: int) -> PromptSet:
    """Different prompts in random order; the last min(64, quarter) of them are held out.

    ValueError for fewer than `LEAST`.
    """
    different = list({tuple(prompt): list(prompt) for prompt in prompts}.values())
    if len(different) < LEAST:
        raise ValueError(
            f"{len(different)} different prompts; expected at least {LEAST}, "
            "because a quarter is held out: bring more prompts or text"
        )
    order = np.random.default_rng([seed, 5]).permutation(len(different))
    shuffled = [different[i] for i in order]
    cut = len(shuffled) - min(64, len(shuffled) // 4)
    counts = {"prompts": len(shuffled), "heldout_prompts": len(shuffled) - cut}
    return PromptSet(tuple(shuffled[:cut]), tuple(shuffled[cut:]), source | counts)


def read_prompt_set(sources: PromptSources, work: Path, progress: Progress = quiet) -> PromptSet:
    """The prompts of all sources, kept in `work` for later calls; ValueError for unusable ones.

    Without sources those that `work` holds. ValueError where it holds prompts of other sources.
    """
    stored, names = work / "prompts.json", [*map(str, sources.prompts), *sources.text]
    if not names and not stored.exists():
        raise ValueError(
            f"no prompts and no text are given and {work} holds none; "
            "name text files or folders, or prompts by --prompts"
        )
    given = {
        "prompt_files": {Path(path).name: sha256(Path(path)) for path in sources.prompts},
        "text_files": {path.name: sha256(path) for path in text_files(sources.text)},
        "chat": sources.form.metadata(),
        "longest": sources.longest,
        "seed": sources.seed,
    }
    if stored.exists():
        source = read_card(stored)
        if names and any(source.get(key) != value for key, value in given.items()):
            raise ValueError(
                f"{work} holds prompts of other files or settings; choose another --work"
            )
        return _load(work / FILE, source)
    progress("prompts", 0, 1, "reading prompts and text")
    parts = [read_prompts(Path(path), sources.form, sources.longest) for path in sources.prompts]
    prompts = [prompt.token for part, _ in parts for prompt in part]
    prompts += list(text_windows(sources.form, sources.text, min(WINDOW, sources.longest)))
    left_out = sum((left for _, left in parts), LeftOut())
    found = split_prompts(prompts, given | {"left_out": left_out.to_json()}, sources.seed)
    _save(found, work)
    note = f"{len(found.training)} prompts, {len(found.heldout)} held out"
    progress("prompts", 1, 1, ", ".join(part for part in (note, left_out.describe()) if part))
    return found


def text_files(paths: Sequence[str]) -> Iterator[Path]:
    """The files of text below files and folders; those that do not exist are left out."""
    for path in map(Path, paths):
        if path.is_dir():
            yield from (inside for inside in sorted(path.rglob("*")) if inside.is_file())
        elif path.is_file():
            yield path


def text_windows(form: PromptFormat, paths: Sequence[str], length: int) -> Iterator[list[int]]:
    """Windows of `length` tokens, side by side within each document.

    Each follows the special tokens that the tokenizer puts in front of every text.
    """
    for document in documents(paths):
        ids = form.tokenizer.encode(document["text"], add_special_tokens=False).ids
        begin = form.text(document["text"])
        begin = begin[: len(begin) - len(ids)]
        step = max(1, length - len(begin))
        yield from (begin + ids[i : i + step] for i in range(0, len(ids) - step + 1, step))


def _save(prompts: PromptSet, work: Path) -> None:
    everything = [*prompts.training, *prompts.heldout]
    tensors = {
        "token": np.concatenate([np.array(prompt, np.int32) for prompt in everything]),
        "length": np.array([len(prompt) for prompt in everything], np.int64),
    }
    with replacing(work / FILE) as temporary:
        save_file(tensors, str(temporary))
    replace_json(work / "prompts.json", prompts.source)


def _load(path: Path, source: dict) -> PromptSet:
    try:
        stored = load_file(str(path))
        ends = np.cumsum(stored["length"])
        prompts = [part.tolist() for part in np.split(stored["token"], ends[:-1])]
        cut = len(prompts) - source["heldout_prompts"]
        if ends[-1] != len(stored["token"]) or not 0 < cut < len(prompts):
            raise ValueError("its counts do not agree")
    except Exception as error:  # safetensors raises its own type
        raise ValueError(
            f"{path} is damaged ({' '.join(str(error).split())[:200]}); choose another --work"
        ) from error
    return PromptSet(tuple(prompts[:cut]), tuple(prompts[cut:]), source)

"""Text for training: documents of files, and the prompts that a target continues."""

import hashlib
import lzma
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from real.files import read_card, replace_json, replacing
from real.model.stored_weights import sha256
from real.progress import Progress, quiet
from real.prompts import LeftOut, PromptFormat, read_prompts
from real.train.settings import Training
from simspec.output.files import parse_json, reraised

MAX_RATIO = 200
"""Largest decompression ratio. Text gives 3 to 8, repetitive text some 50, a malicious file
thousands."""
LONGEST_LINE = 1 << 28
"""Bytes of a line, which is one document."""


class CorpusError(ValueError):
    """Text that cannot be read."""


def documents(paths: Iterable[Path | str]) -> Iterator[dict]:
    """Rows `{"text", "source"}` of files: .txt and .md whole, .jsonl(.xz) line by line.

    Folders are sorted. CorpusError for a missing path, another kind of file, or a line without a
    string under "text".
    """
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(
                p
                for p in path.rglob("*")
                if p.name.endswith((".txt", ".md", ".jsonl", ".jsonl.xz"))
            )
            if not inside:
                raise CorpusError(
                    f"{path} holds no .txt, .md, .jsonl or .jsonl.xz file; "
                    "name a folder or file that does"
                )
            yield from documents(inside)
        elif not path.is_file():
            raise CorpusError(f"{path} does not exist; expected a text file or a folder of them")
        elif path.suffix in (".txt", ".md"):
            try:
                yield {"text": path.read_text(encoding="utf-8"), "source": path.name}
            except UnicodeDecodeError as error:
                raise CorpusError(f"{path} is not UTF-8 text ({error}); convert it") from error
        elif path.name.endswith((".jsonl", ".jsonl.xz")):
            yield from _lines(path)
        else:
            raise CorpusError(
                f"{path} is not .txt, .md, .jsonl or .jsonl.xz; convert it to one of these"
            )


def _lines(path: Path) -> Iterator[dict]:
    try:
        packed = path.suffix == ".xz"
        with lzma.open(path, "rb") if packed else open(path, "rb") as file:
            left = MAX_RATIO * path.stat().st_size if packed else sys.maxsize
            number = 0
            while raw := file.readline(min(LONGEST_LINE, left) + 1):
                number += 1
                if len(raw) > LONGEST_LINE:
                    raise CorpusError(
                        f"{path} line {number} has over {LONGEST_LINE:,} bytes; split it"
                    )
                left -= len(raw)
                if left < 0:
                    raise CorpusError(
                        f"{path} decompresses to more than {MAX_RATIO} times its size, expected "
                        "text; fetch it again"
                    )
                yield _row(path, number, raw.decode("utf-8"))
    except (EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise CorpusError(
            f"{path} is damaged or not UTF-8 text ({error}); fetch it again"
        ) from error


def _row(path: Path, number: int, line: str) -> dict:
    what = f'{path} line {number}: expected a JSON object with "text", got {line[:60]!r}'
    with reraised(CorpusError, what):
        row = parse_json(line)
        text = row["text"]
    if not isinstance(text, str):
        raise CorpusError(
            f'{path} line {number}: "text" is {type(text).__name__}; expected a string'
        )
    return {"text": text, "source": str(row.get("source", path.name))}


WINDOW = 64
"""Tokens of a prompt that is cut from text; shorter ends of documents are left out."""
LEAST = 8
"""Prompts: two of them are held out, one to choose weights by and one to evaluate."""
FILE = "prompts.safetensors"


@dataclass(frozen=True)
class PromptSet:
    """Different prompts, split into those for training drafters and those held out."""

    # training, heldout: tokens of each prompt; no prompt is in both
    training: tuple[list[int], ...]
    heldout: tuple[list[int], ...]
    source: dict  # files by name with their hashes, and counts, for cards

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of all prompts and their split."""
        digest = hashlib.sha256()
        for part in (self.training, self.heldout):
            for prompt in part:
                digest.update(np.array([len(prompt), *prompt], np.int64).tobytes())
            digest.update(b"|")
        return digest.hexdigest()


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


def read_prompt_set(
    settings: Training, form: PromptFormat, longest: int, progress: Progress = quiet
) -> PromptSet:
    """The prompts that the settings name, kept in the work folder for later calls.

    Longer ones than `longest` tokens are left out. Without any those of the work folder;
    ValueError where it holds prompts of other files or settings.
    """
    work, text = settings.work_folder, () if settings.learn_text else settings.text
    stored = work / "prompts.json"
    given = {
        "prompt_files": {path.name: sha256(path) for path in settings.prompts},
        "text_files": {path.name: sha256(path) for path in text_files(text)},
        "chat": form.metadata(),
        "longest": longest,
        "seed": settings.seed,
    }
    if stored.exists():
        source = read_card(stored)
        if (settings.prompts or text) and not given.items() <= source.items():
            raise ValueError(
                f"{work} holds prompts of other files or settings; choose another --work"
            )
        return _load(work / FILE, source)
    if not (settings.prompts or text):
        raise ValueError(
            f"no prompts and no text are given and {work} holds none; "
            "name text files or folders, or prompts by --prompts"
        )
    progress("prompts", 0, 1, "reading prompts and text")
    parts = [read_prompts(path, form, longest) for path in settings.prompts]
    prompts = [prompt.token for part, _ in parts for prompt in part]
    prompts += list(text_windows(form, text, min(WINDOW, longest)))
    left_out = sum((left for _, left in parts), LeftOut())
    found = split_prompts(prompts, given | {"left_out": asdict(left_out)}, settings.seed)
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
    # safetensors raises its own type
    with reraised(ValueError, f"{path} is damaged", "choose another --work", Exception):
        stored = load_file(str(path))
        ends = np.cumsum(stored["length"])
        prompts = [part.tolist() for part in np.split(stored["token"], ends[:-1])]
        cut = len(prompts) - source["heldout_prompts"]
        if ends[-1] != len(stored["token"]) or not 0 < cut < len(prompts):
            raise ValueError("its counts do not agree")
    return PromptSet(tuple(prompts[:cut]), tuple(prompts[cut:]), source)

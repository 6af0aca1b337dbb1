"""Text for training: documents, a byte-level BPE, and one flat array of tokens."""

import json
import lzma
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from real.files import replacing
from real.model.checkpoint import load_tokenizer
from real.progress import Progress, quiet
from real.train.config import TrainConfig

END = "<|end|>"
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
        with _opened(path) as file:
            left = MAX_RATIO * path.stat().st_size if path.suffix == ".xz" else sys.maxsize
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


def _opened(path: Path) -> IO[bytes]:
    """The file's bytes; those of .xz are decompressed as they are read."""
    return lzma.open(path, "rb") if path.suffix == ".xz" else open(path, "rb")


def _row(path: Path, number: int, line: str) -> dict:
    try:
        row = json.loads(line)
        text = row["text"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorpusError(
            f'{path} line {number}: expected a JSON object with "text", got {line[:60]!r}'
        ) from error
    if not isinstance(text, str):
        raise CorpusError(
            f'{path} line {number}: "text" is {type(text).__name__}; expected a string'
        )
    return {"text": text, "source": str(row.get("source", path.name))}


def train_tokenizer(texts: Iterable[str], vocab: int):
    """A byte-level BPE of `vocab` tokens, digits one by one, with `<|end|>` as token 0."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer, texts: Iterable[str], batch: int = 512) -> np.ndarray:
    """All texts in one row, an end token after each; uint32 for vocabularies above 65,536."""
    end = tokenizer.token_to_id(END)
    dtype = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32
    parts: list[np.ndarray] = []
    held: list[str] = []

    def flush():
        for item in tokenizer.encode_batch(held):
            parts.append(np.array(item.ids + [end], dtype))
        held.clear()

    for text in texts:
        held.append(text)
        if len(held) == batch:
            flush()
    flush()
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def windows(token: np.ndarray, rows: int, length: int, seed: int, step: int) -> np.ndarray:
    """Random windows int64 `[rows, length + 1]` of a token array, addressed by (seed, step)."""
    if len(token) <= length + 1:
        raise CorpusError(
            f"the text has {len(token)} tokens; training on windows of {length} needs more"
        )
    start = np.random.default_rng([seed, step]).integers(0, len(token) - length - 1, rows)
    return token[start[:, None] + np.arange(length + 1)].astype(np.int64)


@dataclass(frozen=True)
class EncodedText:
    """The tokenizer, the tokens to train on, and those of each held-out file."""

    tokenizer: Any
    tokens: np.ndarray
    heldout: dict[str, np.ndarray]


def read_training_text(
    config: TrainConfig, out: Path, work: Path, progress: Progress = quiet
) -> EncodedText:
    """Fits the tokenizer and encodes the text, once; unusable text leaves no files."""
    created = [_highest_missing(folder) for folder in (out, work) if not folder.exists()]
    try:
        tokenizer = _tokenizer(config, out, progress)
        tokens = encoded_text(config, tokenizer, work, progress)
        heldout = {
            Path(p).name.split(".")[0]: encode(tokenizer, (d["text"] for d in documents([p])))
            for p in config.heldout
        }
        # too short a text is refused now, not after hours
        windows(tokens, 1, config.target_plan.length, 0, 0)
        for part in heldout.values():
            whole_windows(part, config.target_plan.length)
    except (ValueError, OSError):
        for folder in created:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return EncodedText(tokenizer, tokens, heldout)


def encoded_text(config: TrainConfig, tokenizer, work: Path, progress: Progress) -> np.ndarray:
    """The tokens of the text, from `<work>/text.npy` where it exists."""
    path = work / "text.npy"
    if not path.exists():
        progress("tokens", 0, 1, "reading the text")
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, encode(tokenizer, (d["text"] for d in documents(config.text))))
    tokens = np.load(path, mmap_mode="r")
    progress("tokens", 1, 1, f"{len(tokens):,} tokens")
    return tokens


def whole_windows(tokens: np.ndarray, length: int) -> int:
    """How many whole windows held-out tokens have; ValueError for none."""
    count = (len(tokens) - 1) // length
    if count < 1:
        raise ValueError(f"held-out text has {len(tokens)} tokens; expected more than {length}")
    return count


def _highest_missing(folder: Path) -> Path:
    """The highest folder of a path that does not exist yet."""
    while not folder.parent.exists():
        folder = folder.parent
    return folder


def _tokenizer(config: TrainConfig, out: Path, progress: Progress):
    path = out / "target" / "tokenizer.json"
    if not path.exists():
        progress("tokenizer", 0, 1, "fitting the BPE")
        texts = [d["text"] for _, d in zip(range(config.sample), documents(config.text))]
        tokenizer = train_tokenizer(texts, config.vocab).to_str(pretty=True)
        with replacing(path) as temporary:
            temporary.write_text(tokenizer, encoding="utf-8")
    progress("tokenizer", 1, 1)
    return load_tokenizer(out / "target")

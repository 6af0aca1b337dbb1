"""A file of the target's sequences, shared by recordings of several drafters."""

import hashlib
import json
from collections.abc import Sequence
from glob import escape
from pathlib import Path

import numpy as np

from real.files import replacing
from real.model.target import Target
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.prompts import Conversation, LeftOut, Prompt
from real.record.rows import MAX_CODE
from real.record.settings import RecordError, Settings
from real.record.target_sequence import SequenceError, TargetSequence, target_sequences
from simspec import TraceMeta

MADE_WITH = (
    "target",
    "tokenizer_sha256",
    "rule",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "device",
    "dtype",
    "versions",
)
"""Fields of the metadata that the sequences depend on."""


class SequenceCache:
    """The sequences in the JSON file `path`, by draw address and prompt.

    They hold for one target, rule, budget, set of end tokens, device, dtype, versions and kind of
    passes. RecordError for a file of others, and for a damaged file.

    Of several processes, each writes a separate file next to `path` and reads those of all;
    `merge` makes them one.
    """

    def __init__(
        self,
        path: str | Path,
        settings: Settings,
        meta: TraceMeta,
        target: Target,
        processes: Processes = ALONE,
    ):
        self.sampled = settings.rule.sampled
        self.path, self.budget, self.end_tokens = Path(path), settings.budget, settings.end_tokens
        name = self.path.name
        self.own = self.path if processes.first else self.path.with_name(f"{name}.{processes.rank}")
        self.vocab = target.decoder.config.vocab
        made_with = {name: getattr(meta, name) for name in MADE_WITH}
        made_with |= {"budget": settings.budget, "end_tokens": settings.end_tokens}
        passes = target.passes
        made_with["passes"] = [type(passes).__name__, *passes.widths, passes.smallest]
        if settings.batch > 1:
            made_with["batch"] = settings.batch
        self.made_with = json.loads(json.dumps(made_with))
        self.sequences: dict[str, list[list[int]]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Reads what all processes have saved."""
        for path in (self.path, *self._others()):
            if path.exists():
                self.sequences |= self._read(path)
        self.saved = len(self.sequences)

    def merge(self) -> None:
        """Makes one file of those of all processes, when none of them writes any more."""
        others = self._others()
        if others:
            self.saved = 0
            self.refresh()
            self._write(self.path)
        for path in others:
            path.unlink()

    def _others(self) -> list[Path]:
        """The files of other processes than the first, of this job or of an interrupted one."""
        files = self.path.parent.glob(f"{escape(self.path.name)}.*")
        return sorted(path for path in files if path.suffix[1:].isdecimal())

    def find(self, sequence: int, prompt: list[int]) -> TargetSequence | None:
        """The sequence at that address after that prompt, if it is cached."""
        cached = self.sequences.get(_key(sequence, prompt))
        if cached is None:
            return None
        evidence = np.float64 if self.sampled else np.uint8
        return np.array(cached[0], np.int32), np.array(cached[1], evidence)

    def add(self, sequence: int, prompt: list[int], written: TargetSequence) -> None:
        """Caches a sequence; `save` writes it."""
        self.sequences[_key(sequence, prompt)] = [column.tolist() for column in written]

    def save(self) -> None:
        """Writes the file atomically, if a sequence was added."""
        if len(self.sequences) > self.saved:
            self._write(self.own)

    def _write(self, path: Path) -> None:
        content = {
            "made_with": self.made_with,
            "sha256": checksum(self.sequences),
            "texts": dict(sorted(self.sequences.items(), key=lambda item: _address(item[0]))),
        }
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
        self.saved = len(self.sequences)

    def _read(self, path: Path) -> dict[str, list[list[int]]]:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            sequences = dict(content["texts"])
            made_with = dict(content["made_with"])
            intact = content["sha256"] == checksum(sequences)
            if made_with == self.made_with:
                intact = intact and all(self._is_valid(s) for s in sequences.values())
            else:
                intact = True
        except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200]
            raise RecordError(
                f"{path} holds no sequences ({reason}); delete it to write them again"
            ) from None
        keys = {*made_with, *self.made_with}
        differing = sorted(k for k in keys if made_with.get(k) != self.made_with.get(k))
        if differing:
            raise RecordError(
                f"{path} holds sequences made with another {differing[0]}; "
                "name another file for these, or delete it"
            )
        if not intact:
            raise RecordError(
                f"{path} is damaged: its sequences are not those that were written; "
                "delete it to write them again"
            )
        return sequences

    def _is_valid(self, sequence) -> bool:
        token, evidence = sequence
        valid = _integers(token, self.vocab) and (
            _probabilities(evidence) if self.sampled else _integers(evidence, MAX_CODE + 1)
        )
        return (
            valid
            and 1 <= len(token) == len(evidence) <= self.budget
            and not set(token[:-1]) & set(self.end_tokens)
        )


def _integers(column, limit: int) -> bool:
    return isinstance(column, list) and all(type(x) is int and 0 <= x < limit for x in column)


def _probabilities(column) -> bool:
    return isinstance(column, list) and all(type(x) is float and 0 < x <= 1.000001 for x in column)


def checksum(sequences: dict) -> str:
    """SHA-256 of the cached sequences, in hexadecimal."""
    return hashlib.sha256(json.dumps(sequences, sort_keys=True).encode()).hexdigest()


def _key(sequence: int, prompt: list[int]) -> str:
    return f"{sequence}:{hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:32]}"


def _address(key: str) -> tuple[int, str]:
    """The order of keys in a file: by draw address, whoever wrote first."""
    sequence, prompt = key.split(":")
    return int(sequence), prompt


BATCHES_PER_BLOCK = 4
"""Ended sequences are replaced within a block, so only its last batch is partly empty."""


def blocks_of(settings: Settings, shard_size: int, sequences: int) -> list[range]:
    """The sequences that are written together: whole shards, some batches long.

    Blocks depend neither on the number of processes nor on where a recording was interrupted, so
    nor does the rounding.
    """
    return groups_of(-(-BATCHES_PER_BLOCK * settings.batch // shard_size) * shard_size, sequences)


def groups_of(size: int, sequences: int) -> list[range]:
    """The sequences in groups of `size`; the last holds the remainder."""
    return [range(start, min(start + size, sequences)) for start in range(0, sequences, size)]


def write_block(
    target: Target,
    settings: Settings,
    prompts: Sequence[Prompt],
    block: range,
    cache: SequenceCache,
    progress: Progress = quiet,
) -> None:
    """Writes and saves the sequences of a block of the prompts that are not in the cache.

    RecordError naming the prompt of a sequence that cannot be written.
    """
    missing = [i for i in block if cache.find(i, prompts[i].token) is None]
    if not missing:
        return

    def overall(label: str, done: int, total: int, note: str = "") -> None:
        progress(label, block.stop - len(missing) + done, len(prompts), note)

    tokens = [prompts[i].token for i in missing]
    try:
        sequences = target_sequences(target, settings, tokens, missing, overall)
    except SequenceError as error:
        raise RecordError(
            f"sequence {error.address} (prompt {prompts[error.address].id!r}) cannot be recorded: "
            f"{error.reason}"
        ) from error
    for i, written in zip(missing, sequences):
        cache.add(i, prompts[i].token, written)
    cache.save()


SAVED_BATCHES = 4
"""Batches of answers that are written between two saves."""


def add_later_turns(
    target: Target,
    settings: Settings,
    prompts: Sequence[Prompt],
    conversation: Conversation,
    cache: SequenceCache,
    progress: Progress = quiet,
    processes: Processes = ALONE,
) -> tuple[list[Prompt], LeftOut]:
    """All prompts with those of later turns after them, turn by turn: (prompts, left out).

    The answers are the sequences that the recording of these prompts holds: they are written into
    `cache` at the same draw addresses, where the recorder finds them. Several `processes` share
    them.
    """
    every, left_out = list(prompts), LeftOut()
    active: list[tuple[Prompt, int, list[str]]] = [
        (p, i, []) for i, p in enumerate(prompts) if len(p.turns) > 1
    ]
    while active:
        places, size = [place for _, place, _ in active], SAVED_BATCHES * settings.batch
        for i, start in enumerate(range(0, len(places), size)):
            if processes.has(i):
                _write(target, settings, every, places[start : start + size], cache)
            progress("answering", min(start + size, len(places)), len(places))
        processes.wait()
        cache.refresh()
        following = []
        for first, place, answers in active:
            written = cache.find(place, every[place].token)
            assert written is not None  # it was written above
            answers.append(conversation.answer(written[0].tolist(), settings.end_tokens))
            prompt, left = conversation.follow(first, answers)
            left_out += left
            if prompt is not None:
                following.append((first, len(every), answers))
                every.append(prompt)
        active = [entry for entry in following if len(entry[2]) + 1 < len(entry[0].turns)]
    return every, left_out


def _write(
    target: Target,
    settings: Settings,
    prompts: Sequence[Prompt],
    places: Sequence[int],
    cache: SequenceCache,
) -> None:
    """Writes the missing ones of the sequences at these places, and saves them."""
    missing = [i for i in places if cache.find(i, prompts[i].token) is None]
    tokens = [prompts[i].token for i in missing]
    for i, written in zip(missing, target_sequences(target, settings, tokens, missing)):
        cache.add(i, prompts[i].token, written)
    cache.save()

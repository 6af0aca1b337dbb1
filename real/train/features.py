"""Features of training sequences, computed once: in files or a GPU's memory; batches of them."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from real.draft import TrainingBatch
from real.draft.losses import read_target
from real.files import read_card, replace_json, replacing
from real.model.decoder import Decoder
from real.progress import Progress, quiet
from real.train.loop import TrainSchedule
from real.train.sequences import Sequences
from simspec.output.files import reraised

BATCH_TOKENS = 8192
"""Tokens of a pass whose features go to files, padding included."""
HELD_TOKENS = 65_536
"""Tokens of a pass whose features a GPU holds."""
HELD_SHARE = 0.4
"""Most of a GPU's free memory that features take."""
STORED = {torch.float32: "<f4", torch.float64: "<f8", torch.bfloat16: "<i2"}
"""numpy's name of a dtype in a file; it has no bfloat16, whose bits are stored."""
WHOLE = -1
"""In place of the number of batches that a file holds."""


@dataclass(frozen=True)
class FeatureStore:
    """Features of `sequences`, an array `[tokens, ...]` for each name, in a .npy file.

    Files are memory-mapped: a batch reads its own rows. A GPU holds features in its memory; where
    they do not fit, each batch takes a pass of the writer.
    """

    folder: Path  # holds a folder of files for each set of sequences
    # target, sequences: what they are features of
    target: Decoder
    sequences: Sequences
    dtype: torch.dtype  # of storage; bfloat16 halves the files, and rounds
    writer: Decoder | None = None  # computes the features, in its own dtype; None: the target
    # [tokens, ...] by name: files that are mapped, or a GPU's memory
    held: dict[str, Tensor] = field(default_factory=dict)

    def prepare(self, names: Sequence[str], progress: Progress = quiet) -> None:
        """Computes what batches will read, into files or into the GPU's memory."""
        missing = [name for name in names if name not in self.held]
        needed = len(self.sequences.token) * self._token_bytes(missing)
        device = self.target.device
        if self.stores:
            self.compute(missing, progress)
        elif missing and needed <= _room(device):
            for name in missing:
                self.held[name] = torch.empty(self._shape(name), dtype=self.dtype, device=device)
            self._fill(missing, HELD_TOKENS, 0, progress)

    def read(self, names: Sequence[str], indices: np.ndarray, token: Tensor) -> dict[str, Tensor]:
        """Features of a batch of the sequences `indices [b]`, cut to `token [b, n]`."""
        if set(names) <= set(self.held):
            return self.rows(names, indices, token.shape[1])
        return self.of_tokens(token, names)

    def compute(self, names: Sequence[str], progress: Progress = quiet) -> None:
        """Maps the files of these names, and computes what they lack, all in one pass.

        A killed call goes on behind its last batch. ValueError where the disk has less room than
        the files need, or for a damaged one.
        """
        path = self._place / "done.json"
        done: dict[str, int] = read_card(path) if path.exists() else {}
        files = {name: self._mapped(name) for name in names}
        for name, file in files.items():
            self.held[name] = torch.from_numpy(file).view(self.dtype)
        missing = [name for name in names if done.get(name) != WHOLE]

        def save(batches: int) -> None:
            for name in missing:
                files[name].flush()
            replace_json(path, done | dict.fromkeys(missing, batches))

        if missing:
            first = min(done.get(name, 0) for name in missing)
            self._fill(missing, BATCH_TOKENS, first, progress, save)
            save(WHOLE)

    def _fill(
        self, names: Sequence[str], tokens: int, first: int, progress: Progress,
        save: Callable[[int], None] = lambda batches: None
    ) -> None:  # fmt: skip
        """Computes features of all sequences in batches of at most `tokens`, from `first` on."""
        batches = list(self._batches(tokens))
        for number, indices in enumerate(batches[first:], first + 1):
            token, size = self._padded(indices)
            place = torch.arange(token.shape[1])
            row = torch.from_numpy(self.sequences.offset[indices])[:, None] + place
            inside = place < size[:, None]
            for name, value in self._passed(token, names).items():
                held = self.held[name]
                stored = value[inside.to(value.device)].to(self.dtype).to(held.device)
                held[row[inside].to(held.device)] = stored
            save(number)
            progress("features", number, len(batches), ", ".join(names))

    @property
    def stores(self) -> bool:
        """Whether features come from files."""
        return self.target.device.type != "cuda"

    def of_tokens(self, token: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Features of `token [b, n]` as files would hold them, but for rows of padding."""
        found = self._passed(token, names)
        return {k: v.to(self.dtype).to(self.target.dtype) for k, v in found.items()}

    def rows(self, names: Sequence[str], indices: np.ndarray, length: int) -> dict[str, Tensor]:
        """Features `[b, length, ...]` of the first tokens of some sequences, zero after them."""
        device, place = self.target.device, torch.arange(length, device=self.target.device)
        start, stop = (
            torch.from_numpy(self.sequences.offset[indices + end]).to(device)[:, None]
            for end in (0, 1)
        )
        row = start + place
        inside, row = row < stop, torch.minimum(row, stop - 1)
        found = {}
        for name in names:
            held = self.held[name]
            value = held[row.to(held.device)].to(device).to(self.target.dtype)
            found[name] = value * inside.view(*inside.shape, *[1] * (value.dim() - 2))
        return found

    def _padded(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Tokens int64 `[b, n]` of sequences, and the length of each int64 `[b]`."""
        batch = [torch.from_numpy(self.sequences.sequence(index)).long() for index in indices]
        return pad_sequence(batch, True), torch.tensor([len(sequence) for sequence in batch])

    def _passed(self, token: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Features of a pass; padding comes last: a causal pass does not see it."""
        writer = self.writer or self.target
        return read_target(writer, token.to(writer.device), names)

    def _batches(self, tokens: int) -> Iterator[list[int]]:
        """Sequences of similar lengths, so that little is padding."""
        batch: list[int] = []
        length = np.diff(self.sequences.offset)
        for index in np.argsort(length, kind="stable").tolist():
            if batch and (len(batch) + 1) * int(length[index]) > tokens:
                yield batch
                batch = []
            batch.append(index)
        yield batch

    def _mapped(self, name: str) -> np.memmap:
        """The features of a file, mapped and unread; a new one is empty."""
        path, shape, dtype = self._path(name), self._shape(name), np.dtype(STORED[self.dtype])
        if not path.exists():
            remedy = "lower --distil-tokens, or choose another --work"
            made = reraised(ValueError, f"{path} cannot be made", remedy, OSError)
            with made, replacing(path) as part:
                np.lib.format.open_memmap(part, "w+", dtype, shape)
                with open(part, "r+b") as file:  # else a full disk ends the process at some write
                    os.posix_fallocate(file.fileno(), 0, part.stat().st_size)
        with reraised(ValueError, f"{path} is damaged", "delete its folder, and it is made anew"):
            found = np.lib.format.open_memmap(path, "r")  # r+ would lengthen a file that is cut
            if (found.shape, found.dtype) != (shape, dtype):
                raise ValueError(f"it holds {found.dtype} {list(found.shape)}")
            return np.lib.format.open_memmap(path, "r+")

    def _shape(self, name: str) -> tuple[int, ...]:
        return len(self.sequences.token), *feature_shape(self.target, name)

    def _token_bytes(self, names: Sequence[str]) -> int:
        size = torch.empty(0, dtype=self.dtype).element_size()
        return size * sum(int(np.prod(feature_shape(self.target, name))) for name in names)

    def _path(self, name: str) -> Path:
        return self._place / f"{name.replace(':', '-')}.npy"

    @cached_property
    def _place(self) -> Path:
        """A folder for these sequences and this dtype: others have other files."""
        parts = self.sequences.token.tobytes(), self.sequences.offset.tobytes()
        whole = b"".join((*parts, str(self.dtype).encode()))
        return self.folder / hashlib.sha256(whole).hexdigest()[:16]


def _room(device: torch.device) -> float:
    """Bytes of a device's memory that features may take."""
    if device.type != "cuda":
        return 0.0
    torch.cuda.empty_cache()  # what batches of sequences had taken
    return HELD_SHARE * torch.cuda.mem_get_info(device)[0]


def feature_shape(target: Decoder, name: str) -> tuple[int, ...]:
    """The shape of one token's feature."""
    s = target.config
    return (2, s.kv_heads, s.head_dim) if name.startswith("kv:") else (s.width,)


LEAST_COLUMNS = 16
"""Fewest columns of a batch: heads for later tokens need a few, however short the sequences are."""
TOGETHER = 8
"""Batches that are drawn together and share out their sequences by length."""


@dataclass(frozen=True)
class TrainingSet:
    """Sequences to learn from, and the store of their features; `progress` is of its passes."""

    sequences: Sequences
    features: FeatureStore
    progress: Progress = quiet

    def batches(
        self, schedule: TrainSchedule, reads: tuple[str, ...] = ()
    ) -> Callable[[int], TrainingBatch]:
        """Step -> batch of `schedule.rows` whole sequences, cut to `schedule.length` + 1 tokens.

        Addressed by the schedule's seed and the step; sequences of similar lengths meet, so that
        little of a batch is padding. The tokens after each prompt are learned: those that the
        target wrote, an end token included. `reads` names the features to stream.
        """
        features = self.features
        if reads:
            features.prepare(reads, self.progress)

        def batch(step: int) -> TrainingBatch:
            indices = self._drawn(schedule, step)
            rows = [self.sequences.sequence(i)[: schedule.length + 1] for i in indices]
            width = max(LEAST_COLUMNS, *map(len, rows))
            token = np.zeros((len(rows), width), np.int64)
            learned = np.zeros((len(rows), width), bool)
            for i, (row, index) in enumerate(zip(rows, indices)):
                token[i, : len(row)] = row
                learned[i, self.sequences.prompt[index] : len(row)] = True
            device = features.target.device
            read, mask = torch.from_numpy(token).to(device), torch.from_numpy(learned).to(device)
            stored = features.read(reads, indices, read[:, :-1])
            return TrainingBatch(read, mask, stored)

        return batch

    def seen(self, schedule: TrainSchedule, steps: int) -> tuple[Iterator[np.ndarray], int]:
        """The sequences of some steps, each once, and the tokens that were learned in all steps."""
        drawn = [self._drawn(schedule, step) for step in range(steps)]
        indices = np.concatenate([np.zeros(0, np.int64), *drawn])
        cut = np.minimum(np.diff(self.sequences.offset), schedule.length + 1)
        learned = np.maximum(cut - self.sequences.prompt, 0)
        once = np.unique(indices)
        rows = (self.sequences.sequence(i)[: cut[i]] for i in once[learned[once] > 0])
        return rows, int(learned[indices].sum())

    def _drawn(self, schedule: TrainSchedule, step: int) -> np.ndarray:
        """The sequences of a step, int64 `[rows]`."""
        draw = np.random.default_rng([schedule.seed, step // TOGETHER])
        indices = draw.integers(0, len(self.sequences), schedule.rows * TOGETHER)
        length = np.diff(self.sequences.offset)[indices]
        groups = indices[np.argsort(length, kind="stable")].reshape(TOGETHER, schedule.rows)
        return groups[draw.permutation(TOGETHER)[step % TOGETHER]]

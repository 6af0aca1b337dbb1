"""Features of training sequences, computed once: in files or a GPU's memory; batches of them."""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from real.draft import TrainingBatch
from real.draft.losses import read_target
from real.files import replacing
from real.model.decoder import Decoder
from real.progress import Progress, quiet
from real.train.loop import TrainSchedule
from real.train.sequences import SHARD, Sequences
from simspec.output.files import reraised

BATCH_TOKENS = 8192
"""Tokens of a pass whose features go to a file, padding included."""
HELD_TOKENS = 65_536
"""Tokens of a pass whose features a GPU holds."""
HELD_SHARE = 0.4
"""Most of a GPU's free memory that features take."""
OPEN_FILES = 256


@dataclass(frozen=True)
class FeatureStore:
    """Features of `sequences` in files of `SHARD` sequences, one tensor `[tokens, ...]` a file.

    Files are memory-mapped: a batch reads its own rows. A GPU holds features in its memory (an
    H200 took 135 s for 832 files); where they do not fit, each batch takes a pass of the writer.
    """

    folder: Path  # holds a folder of files for each name of real.draft.losses.read_target
    # target, sequences: what they are features of; a file knows the tokens that it belongs to
    target: Decoder
    sequences: Sequences
    dtype: torch.dtype  # of storage; bfloat16 halves the files, and rounds
    writer: Decoder | None = None  # computes the features, in its own dtype; None: the target
    held: dict[str, Tensor] = field(default_factory=dict)

    def prepare(self, names: Sequence[str], progress: Progress = quiet) -> None:
        """Computes what batches will read, into files or into the GPU's memory."""
        if self.stores:
            self.compute(names, progress)
            return
        missing = [name for name in names if name not in self.held]
        needed = len(self.sequences.token) * self._token_bytes(missing)
        if missing and needed <= _room(self.target.device):
            self.hold(missing, progress)

    def read(self, names: Sequence[str], indices: np.ndarray, token: Tensor) -> dict[str, Tensor]:
        """Features of a batch of the sequences `indices [b]`, cut to `token [b, n]`."""
        if self.stores:
            return {name: self.rows(name, indices.tolist(), token.shape[1]) for name in names}
        if set(names) <= set(self.held):
            return self._held_rows(names, indices, token.shape[1])
        return self.of_tokens(token, names)

    def hold(self, names: Sequence[str], progress: Progress = quiet) -> None:
        """Computes features of all sequences into the memory of the target's device."""
        total, device = len(self.sequences.token), self.target.device
        for name in names:
            shape = total, *feature_shape(self.target, name)
            self.held[name] = torch.empty(shape, dtype=self.dtype, device=device)
        batches = list(self._batches(range(len(self.sequences)), HELD_TOKENS))
        for done, indices in enumerate(batches):
            token, size = self._padded(indices)
            place = torch.arange(token.shape[1], device=device) < size.to(device)[:, None]
            row = torch.from_numpy(self.sequences.offset[indices]).to(device)
            row = (row[:, None] + torch.arange(token.shape[1], device=device))[place]
            for name, value in self._passed(token, names).items():
                self.held[name][row] = value[place].to(self.dtype)
            progress("features", done + 1, len(batches), ", ".join(names))

    def compute(self, names: Sequence[str], progress: Progress = quiet) -> None:
        """Computes the files that do not exist, all names in one pass over each sequence.

        ValueError where the disk has less room than they need, or for files of other tokens.
        """
        shards = range(-(-len(self.sequences) // SHARD))
        missing = {
            shard: [name for name in names if not self._path(name, shard).exists()]
            for shard in shards
        }
        self._check_room(missing)
        for shard in shards:
            if missing[shard]:
                self._write(shard, missing[shard])
            for name in names:
                self._open(name, shard)
            note = ", ".join(names)
            progress("features", shard + 1, len(shards), note)

    @property
    def stores(self) -> bool:
        """Whether features come from files."""
        return self.target.device.type != "cuda"

    def of_tokens(self, token: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Features of `token [b, n]` as files would hold them, but for rows of padding."""
        found = self._passed(token, names)
        return {k: v.to(self.dtype).to(self.target.dtype) for k, v in found.items()}

    def rows(self, name: str, indices: Sequence[int], length: int) -> Tensor:
        """Features `[b, length, ...]` of the first tokens of some sequences, zero after them."""
        found = None
        for row, index in enumerate(indices):
            shard = int(index) // SHARD
            start = int(self.sequences.offset[index] - self.sequences.offset[shard * SHARD])
            size = int(self.sequences.offset[index + 1] - self.sequences.offset[index])
            part = self._open(name, shard)[start : start + min(size, length)]
            if found is None:
                shape = len(indices), length, *part.shape[1:]
                found = torch.zeros(shape, dtype=part.dtype)  # narrow until it is on the device
            found[row, : len(part)] = part
        assert found is not None
        return found.to(self.target.device).to(self.target.dtype)

    def _held_rows(
        self, names: Sequence[str], indices: np.ndarray, length: int
    ) -> dict[str, Tensor]:
        """As `rows`, of all names, from memory."""
        device, place = self.target.device, torch.arange(length, device=self.target.device)
        start, stop = (
            torch.from_numpy(self.sequences.offset[indices + end]).to(device)[:, None]
            for end in (0, 1)
        )
        row = start + place
        inside, row = row < stop, torch.minimum(row, stop - 1)
        found = {}
        for name in names:
            value = self.held[name][row].to(self.target.dtype)
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

    def _write(self, shard: int, names: Sequence[str]) -> None:
        parts: dict[str, dict[int, Tensor]] = {name: {} for name in names}
        for indices in self._batches(self._range(shard), BATCH_TOKENS):
            token, size = self._padded(indices)
            for name, value in self._passed(token, names).items():
                for row, length, index in zip(value, size.tolist(), indices):
                    parts[name][index] = row[:length].to(self.dtype).cpu()
        metadata = {"tokens": self._hash(shard)}
        for name, values in parts.items():
            with replacing(self._path(name, shard)) as temporary:
                feature = torch.cat([values[index] for index in self._range(shard)])
                save_file({"feature": feature}, str(temporary), metadata)

    def _batches(self, among: range, tokens: int) -> Iterator[list[int]]:
        """Sequences of similar lengths, so that little is padding."""
        batch: list[int] = []
        length = np.diff(self.sequences.offset)
        for index in sorted(among, key=lambda i: int(length[i])):
            if batch and (len(batch) + 1) * int(length[index]) > tokens:
                yield batch
                batch = []
            batch.append(index)
        yield batch

    def _open(self, name: str, shard: int) -> Any:
        shape = self._tokens(shard), *feature_shape(self.target, name)
        return _slice(self._path(name, shard), shape, str(self.dtype), self._hash(shard))

    def _tokens(self, shard: int) -> int:
        """Tokens of the sequences of a shard."""
        span = self._range(shard)
        return int(self.sequences.offset[span[-1] + 1] - self.sequences.offset[span[0]])

    def _check_room(self, missing: dict[int, list[str]]) -> None:
        parts = missing.items()
        needed = sum(self._tokens(shard) * self._token_bytes(names) for shard, names in parts)
        folder = self.folder
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise ValueError(
                f"features need {needed:,} bytes, {folder} has {free:,} free; "
                "lower --distil-tokens, or choose another --work"
            )

    def _token_bytes(self, names: Sequence[str]) -> int:
        size = torch.empty(0, dtype=self.dtype).element_size()
        return size * sum(int(np.prod(feature_shape(self.target, name))) for name in names)

    def _range(self, shard: int) -> range:
        return range(shard * SHARD, min((shard + 1) * SHARD, len(self.sequences)))

    def _path(self, name: str, shard: int) -> Path:
        return self.folder / name.replace(":", "-") / f"{shard:05d}.safetensors"

    def _hash(self, shard: int) -> str:
        span = self._range(shard)
        offset = self.sequences.offset[span[0] : span[-1] + 2]
        token = self.sequences.token[offset[0] : offset[-1]]
        return _hash(token.tobytes(), (offset - offset[0]).tobytes())


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


@lru_cache(maxsize=OPEN_FILES)
def _hash(token: bytes, offset: bytes) -> str:
    return hashlib.sha256(token + offset).hexdigest()


@lru_cache(maxsize=OPEN_FILES)
def _slice(path: Path, shape: tuple[int, ...], dtype: str, tokens: str) -> Any:
    """The tensor of a file, unread; ValueError for another shape or dtype, or other tokens."""
    remedy, raised = "delete it, and it is made anew", (OSError, SafetensorError)
    with reraised(ValueError, f"{path} is damaged", remedy, raised):
        file = safe_open(str(path), "pt").__enter__()  # stays mapped while it is in the cache
        found = file.get_slice("feature")
        size, kind = tuple(found.get_shape()), found.get_dtype()
        of = (file.metadata() or {}).get("tokens")
    kinds = {"torch.float32": "F32", "torch.float64": "F64", "torch.bfloat16": "BF16"}
    if (size, kind, of) != (shape, kinds.get(dtype), tokens):
        raise ValueError(
            f"{path} holds {kind} {list(size)}, expected {kinds.get(dtype)} {list(shape)} of the "
            "sequences next to it; delete its folder, and it is made anew"
        )
    return found


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

"""Batches of sequences that a target wrote, with their loss mask and stored features."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from real.draft import TrainingBatch
from real.progress import Progress, quiet
from real.train.feature_store import FeatureStore
from real.train.schedule import TrainSchedule
from real.train.sequence_shards import Sequences

LEAST_COLUMNS = 16
"""Of a batch: heads for later tokens need a few, however short the sequences are."""
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
        little of a batch is padding. The tokens behind each prompt are learned: those that the
        target wrote, an end token included. `reads` names the features to stream.
        """
        if reads:
            self.features.compute(reads, self.progress)

        def batch(step: int) -> TrainingBatch:
            indices = self._drawn(schedule, step)
            rows = [self.sequences.sequence(i)[: schedule.length + 1] for i in indices]
            width = max(LEAST_COLUMNS, *map(len, rows))
            token = np.zeros((len(rows), width), np.int64)
            learned = np.zeros((len(rows), width), bool)
            for i, (row, index) in enumerate(zip(rows, indices)):
                token[i, : len(row)] = row
                learned[i, self.sequences.prompt[index] : len(row)] = True
            device = self.features.target.device
            stored = {name: self.features.rows(name, indices.tolist(), width - 1) for name in reads}
            return TrainingBatch(
                torch.from_numpy(token).to(device), torch.from_numpy(learned).to(device), stored
            )

        return batch

    def _drawn(self, schedule: TrainSchedule, step: int) -> np.ndarray:
        """The sequences of a step, int64 `[rows]`."""
        draw = np.random.default_rng([schedule.seed, step // TOGETHER])
        indices = draw.integers(0, len(self.sequences), schedule.rows * TOGETHER)
        length = np.diff(self.sequences.offset)[indices]
        groups = indices[np.argsort(length, kind="stable")].reshape(TOGETHER, schedule.rows)
        return groups[draw.permutation(TOGETHER)[step % TOGETHER]]


def read_tokens(batch: TrainingBatch) -> list[np.ndarray]:
    """The sequences of a batch without their padding; `[b, n]` together where none has any."""
    token = batch.token.cpu().numpy()
    if batch.learned is None:
        return [token]
    learned = batch.learned.cpu().numpy()
    sizes = learned.shape[1] - learned[:, ::-1].argmax(1)  # a sequence ends with learned tokens
    return [row[:size] for row, size in zip(token, np.where(learned.any(1), sizes, 0))]


def learned_tokens(batch: TrainingBatch) -> int:
    """How many tokens of a batch are learned."""
    if batch.learned is None:
        return batch.token.shape[0] * (batch.token.shape[1] - 1)
    return int(batch.learned.sum())

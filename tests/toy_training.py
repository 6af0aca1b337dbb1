"""Data that toy drafters are trained and evaluated on, and settings of their trainings."""

import json
from functools import lru_cache

import numpy as np
import torch
from toy_lm import toy_prompts, toy_target, toy_texts

from real.draft import TrainingBatch
from real.model.target import Target
from real.record import Settings
from real.record.sequences import target_sequence
from real.sampling import Rule
from real.train.data import TrainingData
from real.train.sequences import Sequences
from real.train.settings import Training

LENGTH = 15
"""Tokens of a toy sequence that are learned."""


def asked(drafter, folder, chosen=(), **given):
    """The settings of a toy training in `folder`; `chosen` becomes its --set options."""
    options = tuple(f"{key}={json.dumps(value)}" for key, value in dict(chosen).items())
    given = {"out": folder / "out", "work": folder / "work", "steps": 6, "rows": 4} | given
    return Training(drafter, settings=options, **given)


@lru_cache
def continuations(count=3, length=14):
    """Toy prompts, and what the toy target writes after them."""
    record_settings, target = Settings(5, length, Rule(), ()), Target(toy_target())
    return tuple(
        (prompt, target_sequence(target, record_settings, prompt, 0)[0].astype(np.int64))
        for prompt in toy_prompts(count)
    )


def sequences_of(pairs):
    """Prompts with their new tokens, as a shard holds them."""
    rows = [np.concatenate([prompt, new]).astype(np.int32) for prompt, new in pairs]
    return Sequences.of(rows, [len(p) for p, _ in pairs])


class Windows:
    """Windows of toy texts by step, in the place of a `TrainingSet`; features are computed anew."""

    def __init__(self, rows):
        self.rows = rows
        self.sequences = sequences_of([(row[:1], row[1:]) for row in rows])

    def drawn(self, schedule, step):
        draw = np.random.default_rng([schedule.seed, step])
        return self.rows[draw.integers(0, len(self.rows), schedule.rows), : schedule.length + 1]

    def batches(self, schedule, reads=()):
        return lambda step: TrainingBatch(torch.from_numpy(self.drawn(schedule, step)))

    def seen(self, schedule, steps):
        windows = [self.drawn(schedule, step) for step in range(steps)]
        return windows, steps * schedule.rows * schedule.length


def drafter_data(texts=12):
    held, written = continuations(texts + 4, 12), continuations(24, 12)
    return TrainingData(
        target=toy_target(), made_for={"tokenizer": "t", "config": "c", "weights": "w"},
        end_tokens=(3,), context=32, learning=Windows(toy_texts().numpy()), length=LENGTH,
        validation=held[:4], evaluation=held[4:], mixed=False,
        source={"prompts_sha256": "p", "sequences": 192, "features": "float64"},
        prompts=[prompt for prompt, _ in written], written=sequences_of(written)
    )  # fmt: skip

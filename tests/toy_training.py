"""Data that toy drafters are trained and evaluated on."""

import numpy as np
import torch
from toy_lm import toy_prompts, toy_target, toy_texts

from real.model.target import Target
from real.record import Settings
from real.record.sequences import target_sequence
from real.sampling import Rule
from real.train.drafter_data import DrafterData
from real.train.optimizers import TrainSchedule

PLAN = TrainSchedule(steps=6, rows=4, length=15, save_every=4)


def continuations(count=3, length=14):
    """Toy prompts, and what the toy target writes after them."""
    record_settings, target = Settings(5, length, Rule(), ()), Target(toy_target())
    return [
        (prompt, target_sequence(target, record_settings, prompt, 0)[0].astype(np.int64))
        for prompt in toy_prompts(count)
    ]


def drafter_data(texts=12):
    target, held = toy_target(), continuations(texts + 4, 12)
    sequences = toy_texts().numpy()

    def batches(plan, reads=()):
        def batch(step):
            return torch.from_numpy(
                sequences[
                    np.random.default_rng([plan.seed, step]).integers(0, len(sequences), plan.rows),
                    : plan.length + 1,
                ]
            )

        return batch

    hashes = {"tokenizer": "t", "config": "c", "weights": "w"}
    return DrafterData(
        target, hashes, (3,), 32, batches, held[:4], held[4:], mixed=False, blend=1.0
    )

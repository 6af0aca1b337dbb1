"""A process that has loaded what commands need, and forks them: a child loads nothing again."""

import gc
import os
from functools import lru_cache

import torch
import typer.main
from loaded_pairs import share_embedded
from short_training import short_predictor

from real.train import predictors


def keep_loaded():
    """From now on commands of this process and its children share models and the command tree.

    Loading takes longer than a short recording. Acceptance predictors take few steps.
    """
    os.fsync = lambda file: None
    predictors.train_predictor = short_predictor()
    torch.set_num_threads(1)
    # torch renews its pool at the first use after a fork, and loading uses it from several threads
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
    share_embedded()
    typer.main.get_command = lru_cache(typer.main.get_command)


def freeze():
    """Takes all that is there out of garbage collection: every child would look through it."""
    gc.collect()
    gc.freeze()

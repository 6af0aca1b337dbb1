"""Whole jobs, from model folders and recordings to results: what each command does."""

from real.model_settings import ModelSettings, dtype_of, open_recording, policy_cost_of
from real.train.settings import Training
from real.train.train import train_drafter

__all__ = [
    "ModelSettings",
    "Training",
    "dtype_of",
    "open_recording",
    "policy_cost_of",
    "train_drafter",
]

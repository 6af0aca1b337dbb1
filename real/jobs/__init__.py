"""Whole jobs, from model folders and recordings to results: what each command does."""

from real.jobs.audit import ForcedRun, audit_run, force_recording
from real.jobs.convert import export_drafter
from real.jobs.race import RaceOutputs, RaceSettings, race_recording
from real.jobs.run import Outcome, RunSettings, SampledOutcome, run_on, run_recording, run_sampled
from real.jobs.scorecard import ScoringSettings, score_recordings
from real.model_settings import ModelSettings, dtype_of, open_recording, policy_cost_of
from real.train.settings import Training
from real.train.train import train_drafter

__all__ = [
    "ForcedRun",
    "ModelSettings",
    "Outcome",
    "RaceOutputs",
    "RaceSettings",
    "RunSettings",
    "SampledOutcome",
    "ScoringSettings",
    "Training",
    "audit_run",
    "dtype_of",
    "export_drafter",
    "force_recording",
    "open_recording",
    "policy_cost_of",
    "race_recording",
    "run_on",
    "run_recording",
    "run_sampled",
    "score_recordings",
    "train_drafter",
]

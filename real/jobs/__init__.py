"""Whole jobs, from model folders and recordings to results: what each command does."""

from real.jobs.audit import audit_run
from real.jobs.emulate import EmulationSettings, emulate_recording
from real.jobs.exits import exits_of_recording
from real.jobs.import_model import import_gguf
from real.jobs.latency import LatencyFiles, measure_latency
from real.jobs.measure import CostRequest, measure_costs, measure_together, requests_for
from real.jobs.models import ModelSettings, dtype_of
from real.jobs.prompt_selection import PromptSettings
from real.jobs.quantize import quantize_drafter
from real.jobs.race import RaceOutputs, RaceSettings, race_recording
from real.jobs.record import record_prompts, record_to
from real.jobs.record_drafters import record_drafters
from real.jobs.recordings import RULES, open_recording, policy_cost_of
from real.jobs.run import Outcome, RunSettings, run_on, run_recording
from real.jobs.run_sampled import SampledOutcome, run_sampled
from real.jobs.scorecard import ScoringSettings, score_recordings
from real.jobs.teacher_force import ForcedRun, force_recording
from real.jobs.train import (
    DrafterRequest,
    TrainingLength,
    TrainingPlace,
    TrainingText,
    train_drafter,
    train_models,
)
from real.train.target_pipeline import PromptFiles

__all__ = [
    "RULES",
    "CostRequest",
    "DrafterRequest",
    "EmulationSettings",
    "ForcedRun",
    "LatencyFiles",
    "ModelSettings",
    "Outcome",
    "PromptFiles",
    "PromptSettings",
    "RaceOutputs",
    "RaceSettings",
    "RunSettings",
    "SampledOutcome",
    "ScoringSettings",
    "TrainingLength",
    "TrainingPlace",
    "TrainingText",
    "audit_run",
    "dtype_of",
    "emulate_recording",
    "exits_of_recording",
    "force_recording",
    "import_gguf",
    "measure_costs",
    "measure_latency",
    "measure_together",
    "open_recording",
    "policy_cost_of",
    "quantize_drafter",
    "race_recording",
    "record_prompts",
    "record_drafters",
    "record_to",
    "requests_for",
    "run_on",
    "run_recording",
    "run_sampled",
    "score_recordings",
    "train_drafter",
    "train_models",
]

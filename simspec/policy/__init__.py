"""Draft-length policies: their functions, arguments, predictors and states."""

from simspec.policy.predictor import brier, examples, fit_predictor, reliability, split_by_task

__all__ = ["brier", "examples", "fit_predictor", "reliability", "split_by_task"]

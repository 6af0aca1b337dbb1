"""Toy trainings without most steps of their predictors."""

from functools import partial


def short_predictor():
    """`train_predictor` in 20 steps, not 300."""
    from real.train.predictors import train_predictor

    return partial(train_predictor, steps=20)

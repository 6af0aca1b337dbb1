"""Toy trainings without what takes longest of them: ticks of loss curves, steps of predictors."""

from functools import partial

SIDES = "xtick.bottom", "xtick.labelbottom", "ytick.left", "ytick.labelleft"
NO_TICKS = dict.fromkeys(SIDES, False)
"""Settings of matplotlib."""


def short_predictor():
    """`train_predictor` in 20 steps, not 300."""
    from real.train.predictors import train_predictor

    return partial(train_predictor, steps=20)

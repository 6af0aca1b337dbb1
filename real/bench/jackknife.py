"""Intervals over prompts of smooth figures, by leaving out one prompt at a time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from simspec.numerics.stats import MIN_PROMPTS


@dataclass(frozen=True)
class Figure:
    """A figure with its 95% interval over prompts; None for fewer than MIN_PROMPTS."""

    value: float
    low: float | None = None
    high: float | None = None


def jackknife(value: float, *left_out: Sequence[float] | np.ndarray) -> Figure:
    """A figure with its interval, from figures without one prompt, for each set of prompts.

    value -/+ t s, s^2 = sum over sets of (P - 1) / P sum_i (x_i - mean x)^2, x_i the figure without
    prompt i of that set (Efron and Stein 1981), t the Student quantile of the smallest P - 1.
    A prompt is left out with all its repeats: its times differ by the prompt and by the noise of
    its calls, so the interval holds both. Sets of prompts are independent. On simulated races it
    covers 94 to 96%, the percentile bootstrap 93 to 95%, and one that resamples repeats too 99%
    of a contestant's ratio to itself (tests/test_race_interval.py).
    """
    sets = [np.asarray(figures, np.float64) for figures in left_out]
    least = min(map(len, sets))
    if least < MIN_PROMPTS:
        return Figure(value)
    variance = sum((len(x) - 1) * float(x.var()) for x in sets)
    reach = float(stdtrit(least - 1, 0.975)) * math.sqrt(variance)
    return Figure(value, value - reach, value + reach)

"""Calibration of predicted probabilities."""

from typing import Any

import numpy as np


def reliability(probability: np.ndarray, label: np.ndarray, bins: int = 10) -> np.ndarray:
    """Calibration by equal bins of [0, 1], float64[bins, 3]: (count, mean probability, share true),
    NaN where count is 0.

    A probability on an edge belongs to the upper bin, 1 to the last. ValueError for other shapes,
    bins < 1 or outside [0, 1].
    """
    probability, label = _pairs(probability, label)
    if bins < 1:
        raise ValueError(f"bins is {bins}, expected at least 1")
    bin_of = np.minimum((probability * bins).astype(np.int64), bins - 1)
    count = np.bincount(bin_of, minlength=bins).astype(np.float64)
    share = np.where(count > 0, count, np.nan)
    sums = [
        np.bincount(bin_of, weights=w, minlength=bins) / share
        for w in (probability, label.astype(np.float64))
    ]
    return np.stack((count, *sums), axis=1)


def brier(probability: np.ndarray, label: np.ndarray) -> float:
    """Mean of (probability - label)^2: 0 is perfect, 1/4 for a constant 1/2. ValueError for none
    or outside [0, 1].
    """
    probability, label = _pairs(probability, label)
    return float(np.mean((probability - label) ** 2))


def _pairs(probability: Any, label: Any) -> Any:
    probability, label = np.asarray(probability, dtype=np.float64), np.asarray(label, dtype=bool)
    if probability.ndim != 1 or probability.shape != label.shape or not len(label):
        raise ValueError(
            f"probabilities {list(probability.shape)} and labels {list(label.shape)}, expected the "
            "same one axis, not empty"
        )
    if not ((probability >= 0) & (probability <= 1)).all():
        raise ValueError("a probability lies outside [0, 1]")
    return probability, label

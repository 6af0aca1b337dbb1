"""Moments and a Chernoff interval of sums over the rounds of synthetic sequences."""

import math
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from simspec.validation.round_distribution import Array, RoundDistribution

_GRID = np.array([0.6, 0.75, 0.85, 0.95, 1.0, 1.05, 1.15, 1.3, 1.6])

Step = TypeVar("Step")


def moments(distribution: RoundDistribution, reward: Array) -> tuple[float, float]:
    """Exact mean and variance of the sum of reward[cap, k, a] over the rounds of one sequence.

    reward float64[K + 1, K + 1, K + 1]: cap = min(K, rows left - 1), k drafted, a accepted.
    """
    # mean and second moment of the sum still to come, by rows left
    ahead = np.zeros((distribution.rows + 1, len(distribution.start), 2))
    steps = _steps(distribution, lambda row: _weighted(distribution, reward, row))
    for left, cap, (by_a, gain, square) in steps:
        # After a accepted, left - 1 - a tokens remain: a = 0 .. cap counts down from left - 1.
        later = ahead[left - 1 - cap : left][::-1].reshape(-1, 2)
        ahead[left] = by_a @ later
        ahead[left, :, 0] += gain.sum(axis=1)
        ahead[left, :, 1] += square + 2 * gain @ later[:, 0]
    mean, second = distribution.start @ ahead[-1]
    return float(mean), max(float(second - mean * mean), 0.0)


def interval(
    distribution: RoundDistribution, reward: Array, sequences: int, risk: float
) -> tuple[float, float, float]:
    """(mean, low, high) of the sum over independent sequences; P(outside [low, high]) <= risk.

    Chernoff: for any h > 0, P(sum >= x) <= exp(n log M(h) - h x), M the moment generating function
    of one sequence's sum, exact by recursion. low and high are where the least bound over a grid of
    h is risk / 2. No normal approximation.
    """
    mean, variance = moments(distribution, reward)
    total = sequences * mean
    if variance <= 1e-14 * max(1.0, mean * mean):  # rounding of a sum that cannot vary
        return total, total, total
    reach, longest = math.log(2 / risk), distribution.rows * float(np.abs(reward).max())
    # Any h gives a valid bound: the grid surrounds the normal distribution's best one, where exp
    # does not overflow.
    h = np.minimum(_GRID * math.sqrt(2 * reach / (sequences * variance)), 300 / longest)
    both = np.concatenate((h, -h))
    bend = sequences * (_log_mgf(distribution, reward, both) - both * mean)
    away = (bend + reach) / np.concatenate((h, h))
    return total, total - float(away[len(h) :].min()), total + float(away[: len(h)].min())


def _weighted(
    distribution: RoundDistribution, reward: Array, row: int
) -> tuple[Array, Array, Array]:
    probability = distribution.rounds(row)  # [k, a, z, z']
    cap, Z = len(probability) - 1, len(distribution.start)
    weight = reward[cap, : cap + 1, : cap + 1, None, None]
    first = probability * weight
    by_a, gain = (
        part.sum(axis=0).transpose(1, 0, 2).reshape(Z, -1) for part in (probability, first)
    )
    return by_a, gain, (first * weight).sum(axis=(0, 1, 3))


def _steps(
    distribution: RoundDistribution, step_of: Callable[[int], Step]
) -> Iterator[tuple[int, int, Step]]:
    """(rows left, cap, step_of(row)) from the sequence's end; once per cap if rows are alike."""
    cached: dict[int, Step] = {}
    for left in range(1, distribution.rows + 1):
        cap = min(distribution.K, left - 1)
        key = cap if len(distribution.accept) == 1 else left
        if key not in cached:
            cached[key] = step_of(distribution.rows - left)
        yield left, cap, cached[key]


def _log_mgf(distribution: RoundDistribution, reward: Array, h: Array) -> Array:
    Z = len(distribution.start)
    future = np.ones((distribution.rows + 1, len(h), Z))

    def tilted(row: int) -> Array:
        probability = distribution.rounds(row)
        cap = len(probability) - 1
        tilt = np.exp(h[:, None, None] * reward[cap, : cap + 1, : cap + 1])
        return np.einsum("hka,kazy->hzay", tilt, probability).reshape(len(h), Z, -1)

    for left, cap, weight in _steps(distribution, tilted):
        later = future[left - 1 - cap : left][::-1].transpose(1, 0, 2).reshape(len(h), -1, 1)
        future[left] = (weight @ later)[:, :, 0]
    return np.log(future[-1] @ distribution.start)

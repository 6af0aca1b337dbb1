"""The power of the sampling tests: the smallest effects that they detect with probability 0.99."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy import optimize, stats

from real.audit.acceptance_bias import ACCEPTANCE_TILTS, AcceptanceBias
from real.audit.drafter_bias import BIAS_TILTS, DrafterBias
from real.audit.sampling_statistics import TEMPERATURE_TILTS, SamplingStatistics

POWER = 0.99


def detectable_temperature(statistics: SamplingStatistics, level: float) -> float:
    """The larger of the smallest relative temperature errors of either sign; inf if none.

    Under a tilt x, Σ (surprisal - entropy) has mean x V + x^2 S / 2 and variance V + x S.
    V and S are the sums of `variance` and `third_moment`. The log ratio of a tilt h is
    h Σ (surprisal - entropy) - h^2 V / 2 - h^3 S / 6.
    """
    V, S = float(statistics.variance.sum()), float(statistics.third_moment.sum())

    def evidence(x: float, sign: int) -> float:
        s = sign * S
        score = x * V + x * x * s / 2 - stats.norm.ppf(POWER) * math.sqrt(max(V + x * s, 0.0))
        h = np.abs(TEMPERATURE_TILTS)
        return float((h * score - h**2 * V / 2 - h**3 * s / 6).max())

    # the expansion holds while the third cumulant is small beside the second
    limit = min(1.0, V / abs(S)) if S else 1.0
    tilts = len(TEMPERATURE_TILTS)
    return max(_root(partial(evidence, sign=sign), tilts, level, limit) for sign in (1, -1))


def detectable_bias(bias: DrafterBias, level: float) -> float:
    """The smallest share x of tokens drawn from q instead of p; inf if none.

    The score s then has mean x Σ q s; the log ratio of a tilt h is h s - h^2 s^2 / 2.
    """
    variance, drafter_square = float(bias.variance.sum()), float(bias.drafter_square.sum())
    drift = float(bias.drafter_mean.sum())

    def evidence(x: float) -> float:
        square = (1 - x) * variance + x * drafter_square
        score = x * drift - stats.norm.ppf(POWER) * math.sqrt(square)
        return float((np.abs(BIAS_TILTS) * score - BIAS_TILTS**2 * square / 2).max())

    return _root(evidence, len(BIAS_TILTS), level, 1.0)


def detectable_loss(acceptance: AcceptanceBias, level: float) -> float:
    """The smallest share x of accepted tokens that must be lost, at chances r (1 - x); inf if none.

    The sum of scores then has mean -x Σ r; the log ratio of a tilt h is h Σ score - h^2 V / 2 with
    V = Σ r (1 - r).
    """
    total = float(acceptance.chance.sum())
    variance = float((acceptance.chance * (1 - acceptance.chance)).sum())

    def evidence(x: float) -> float:
        score = x * total - stats.norm.ppf(POWER) * math.sqrt(variance)
        return float((np.abs(ACCEPTANCE_TILTS) * score - ACCEPTANCE_TILTS**2 * variance / 2).max())

    return _root(evidence, len(ACCEPTANCE_TILTS), level, 1.0)


def detectable_variation(n: int, bins: int, level: float) -> float:
    """The smallest total variation from uniform that chi-square detects; inf for one bin.

    sqrt(x / n) / 2, x the noncentrality; x is at least 4 n (total variation)^2.
    """
    if bins < 2:
        return math.inf
    critical = stats.chi2.isf(level, bins - 1)
    noncentrality = optimize.brentq(
        lambda x: stats.ncx2.sf(critical, bins - 1, x) - POWER, 1e-3, 100 * critical
    )
    return float(math.sqrt(noncentrality / n) / 2)


def _root(evidence: Callable[[float], float], tilts: int, level: float, limit: float) -> float:
    """The smallest effect whose 1% quantile of `evidence` raises an alarm; inf beyond `limit`."""
    threshold = math.log(tilts / level)
    if evidence(limit) <= threshold:
        return math.inf
    return float(optimize.brentq(lambda x: evidence(x) - threshold, 0.0, limit))

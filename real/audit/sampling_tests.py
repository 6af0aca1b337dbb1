"""Tests whether emitted tokens are draws from the target's distributions."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from real.audit.acceptance_bias import AcceptanceBias
from real.audit.drafter_bias import DrafterBias
from real.audit.power import (
    detectable_bias,
    detectable_loss,
    detectable_temperature,
    detectable_variation,
)
from real.audit.sampling_statistics import TEMPERATURE_TILTS, SamplingStatistics

MAX_BINS, MIN_PER_BIN = 20, 20


@dataclass(frozen=True)
class SamplingTests:
    """Tests of N tokens; together they raise a false alarm with probability `risk` at most.

    | field | meaning |
    | --- | --- |
    | tokens | N |
    | surprisal, entropy | mean of -log p(token) and its expectation, nats per token |
    | z | their difference in standard deviations; reported, not tested |
    | temperature_ratio | likeliest temperature among the alternatives over the stated one |
    | p_temperature | bound of its p-value: 1 / mean over h of Π p_h(token) / p(token) |
    | bins, chi2, p_chi2 | Pearson's statistic of `pit` in equal bins |
    | total_variation | of those bins from uniform |
    | expected_variation, variation_limit | its mean under p; the limit that raises an alarm |
    | bias_z, p_bias | Σ s(token) in standard deviations, > 0 towards q; bound of its p-value |
    | acceptance_z, p_acceptance | Σ (accepted - r) in standard deviations; bound of its p-value |
    | risk | probability of a false alarm |
    | detectable_temperature | relative temperature error detected with probability 0.99, or inf |
    | detectable_variation | total variation over the bins detected with probability 0.99, or inf |
    | detectable_bias | share of tokens drawn from q detected with probability 0.99, or inf |
    | detectable_loss | share of accepted tokens lost, detected with probability 0.99, or inf |
    | alarms | failed tests: 'temperature', 'uniformity', 'total variation', 'drafter bias', \
'acceptance' |

    The fields of the drafter bias and of acceptance are None where they were not tested.
    """

    tokens: int
    surprisal: float
    entropy: float
    z: float
    temperature_ratio: float
    p_temperature: float
    bins: int
    chi2: float
    p_chi2: float
    total_variation: float
    expected_variation: float
    variation_limit: float
    bias_z: float | None
    p_bias: float | None
    acceptance_z: float | None
    p_acceptance: float | None
    risk: float
    detectable_temperature: float
    detectable_variation: float
    detectable_bias: float | None
    detectable_loss: float | None
    alarms: tuple[str, ...]


def sampling_tests(
    statistics: SamplingStatistics,
    bias: DrafterBias | None,
    risk: float,
    acceptance: AcceptanceBias | None = None,
) -> SamplingTests:
    """Runs m tests on all tokens together, each at level risk / m.

    | test | p-value or limit |
    | --- | --- |
    | temperature | exp(Σ tilt) is a likelihood ratio, so Markov's inequality bounds the p-value |
    | uniformity | chi-square with bins - 1 degrees of freedom |
    | total variation d | P(d >= E d + t) <= exp(-2 N t^2) (McDiarmid) |
    | drafter bias, acceptance, if given | as temperature |

    The bounds hold at any N; at 20 tokens per bin the chi-square tail is up to 1.3 times its
    level.
    ValueError for no token, or a risk outside (0, 1).
    """
    n = len(statistics.surprisal)
    if not n or not 0 < risk < 1:
        raise ValueError(
            f"{n} tokens at risk {risk}; expected at least one token and a risk in (0, 1)"
        )
    level = risk / (3 + (bias is not None) + (acceptance is not None))
    tilts = statistics.tilt.sum(0)
    likeliest = int(tilts.argmax())
    bins = int(np.clip(n // MIN_PER_BIN, 1, MAX_BINS))
    bin_of = np.minimum((statistics.pit * bins).astype(np.int64), bins - 1)
    counts = np.bincount(bin_of, minlength=bins)
    chi2 = float(((counts - n / bins) ** 2).sum() * bins / n)
    total_variation = float(np.abs(counts / n - 1 / bins).sum() / 2)
    expected_variation = bins / 2 * _mean_absolute_deviation(n, 1 / bins)
    variation_limit = expected_variation + math.sqrt(-math.log(level) / (2 * n))
    p_values = {
        "temperature": _markov_bound(statistics.tilt),
        "uniformity": float(stats.chi2.sf(chi2, bins - 1)) if bins > 1 else 1.0,
    }
    alarms = [test for test, p_value in p_values.items() if p_value < level]
    if total_variation > variation_limit:
        alarms.append("total variation")
    bias_z = p_bias = smallest_bias = None
    if bias is not None:
        bias_z, p_bias = _z(bias.score, float(bias.variance.sum())), _markov_bound(bias.tilt)
        smallest_bias = detectable_bias(bias, level)
        if p_bias < level:
            alarms.append("drafter bias")
    acceptance_z = p_acceptance = smallest_loss = None
    if acceptance is not None:
        variance = float((acceptance.chance * (1 - acceptance.chance)).sum())
        acceptance_z = _z(acceptance.score, variance)
        p_acceptance = _markov_bound(acceptance.tilt)
        smallest_loss = detectable_loss(acceptance, level)
        if p_acceptance < level:
            alarms.append("acceptance")
    return SamplingTests(
        tokens=n,
        surprisal=float(statistics.surprisal.mean()),
        entropy=float(statistics.entropy.mean()),
        z=_z(statistics.surprisal - statistics.entropy, float(statistics.variance.sum())),
        temperature_ratio=(
            float(1 / (1 - TEMPERATURE_TILTS[likeliest])) if tilts[likeliest] > 0 else 1.0
        ),
        p_temperature=p_values["temperature"],
        bins=bins,
        chi2=chi2,
        p_chi2=p_values["uniformity"],
        total_variation=total_variation,
        expected_variation=expected_variation,
        variation_limit=variation_limit,
        bias_z=bias_z,
        p_bias=p_bias,
        acceptance_z=acceptance_z,
        p_acceptance=p_acceptance,
        risk=risk,
        detectable_temperature=detectable_temperature(statistics, level),
        detectable_variation=detectable_variation(n, bins, level),
        detectable_bias=smallest_bias,
        detectable_loss=smallest_loss,
        alarms=tuple(alarms),
    )


def _markov_bound(tilts: np.ndarray) -> float:
    """Bound of a p-value: 1 / mean likelihood ratio over the alternatives, at most 1."""
    evidence = np.logaddexp.reduce(tilts.sum(0)) - math.log(tilts.shape[1])
    return math.exp(-evidence) if evidence > 0 else 1.0


def _z(centered: np.ndarray, variance: float) -> float:
    return float(centered.sum() / math.sqrt(variance)) if variance > 0 else 0.0


def _mean_absolute_deviation(n: int, p: float) -> float:
    """E |X / n - p| of a binomial X (de Moivre).

    2 (1 - p) m P(X = m) / n with m = floor(n p) + 1.
    """
    m = math.floor(n * p) + 1
    return float(2 * (1 - p) * m * stats.binom.pmf(m, n, p) / n) if p < 1 else 0.0

"""Tests whether emitted tokens are draws from the target's distributions."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from real.audit.bias import ACCEPTANCE_TILTS, BIAS_TILTS, AcceptanceBias, DrafterBias
from real.audit.rounding import truncates, truncation_mask
from real.sampling import Rule
from simspec.numerics.rng import uniform

PIT = 1 << 16
"""The draw role of randomized probability integral transforms; no engine draws under it."""
TEMPERATURE_TILTS = np.array([sign * 2.0**-i for i in range(1, 9) for sign in (1, -1)])
"""Alternatives h of the temperature test: temperature T / (1 - h)."""


@dataclass(frozen=True)
class SamplingStatistics:
    """The emitted tokens under the target's distributions p.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | surprisal | float64 `[n]` | -log p(token), nats; inf where p is 0 |
    | at_cutoff | bool `[n]` | p is 0, but top-k or top-p off by `slack` nats would keep the token |
    | entropy | float64 `[n]` | mean of -log p(y), y drawn from p |
    | variance, third_moment | float64 `[n]` | central moments of -log p(y) |
    | pit | float64 `[n]` | randomized probability integral transform, uniform if token ~ p |
    | tilt | float64 `[n, len(TEMPERATURE_TILTS)]` | log p_h(token) / p(token), p_h ~ p^(1 - h) |
    """

    surprisal: np.ndarray
    at_cutoff: np.ndarray
    entropy: np.ndarray
    variance: np.ndarray
    third_moment: np.ndarray
    pit: np.ndarray
    tilt: np.ndarray


@torch.inference_mode()
def sampling_statistics(
    rule: Rule, logits: Tensor, token: tuple[int, ...], sequence: int, position: int, slack: float
) -> SamplingStatistics:
    """Statistics of `token [n]` at positions `position`, ... from logits `[n, vocab]`.

    pit = Σ p(y) over likelier y + w p(token), w uniform; ties go to the smaller index.
    """
    ids = torch.tensor(token, device=logits.device)[:, None]
    p = rule.probs(logits)
    log = p.log()
    p_token = p.gather(-1, ids)
    at_cutoff = torch.zeros_like(ids, dtype=torch.bool)
    if truncates(rule):
        at_cutoff = (p_token == 0) & truncation_mask(rule, logits, slack).gather(-1, ids)
    entropy = torch.special.entr(p).sum(-1)
    centered = torch.where(p > 0, -log - entropy[:, None], 0.0)
    moments = [(p * centered**power).sum(-1) for power in (2, 3)]
    smaller = torch.arange(p.shape[-1], device=p.device) < ids
    likelier = torch.where((p > p_token) | ((p == p_token) & smaller), p, 0.0).sum(-1)
    positions = range(position, position + len(token))
    draws = [uniform(rule.seed, sequence, at, 0, PIT) for at in positions]
    pit = likelier + p_token[:, 0] * torch.tensor(draws, dtype=p.dtype, device=p.device)
    surprisal = -log.gather(-1, ids)[:, 0]
    tilts = [h * surprisal - ((1 - h) * log).logsumexp(-1) for h in TEMPERATURE_TILTS.tolist()]
    columns = (
        surprisal,
        at_cutoff[:, 0],
        entropy,
        *moments,
        pit.clamp(0, 1),
        torch.stack(tilts, -1),
    )
    return SamplingStatistics(*(column.cpu().numpy() for column in columns))


POWER = 0.99
QUANTILE = float(ndtri(POWER))


def detectable_temperature(statistics: SamplingStatistics, level: float) -> float:
    """The larger of the smallest relative temperature errors of either sign; inf if none.

    Under a tilt x, Σ (surprisal - entropy) has mean x V + x^2 S / 2 and variance V + x S.
    V and S are the sums of `variance` and `third_moment`. The log ratio of a tilt h is
    h Σ (surprisal - entropy) - h^2 V / 2 - h^3 S / 6.
    """
    V, S = float(statistics.variance.sum()), float(statistics.third_moment.sum())

    def evidence(x: float, sign: int) -> float:
        s = sign * S
        score = x * V + x * x * s / 2 - QUANTILE * math.sqrt(max(V + x * s, 0.0))
        h = np.abs(TEMPERATURE_TILTS)
        return float((h * score - h**2 * V / 2 - h**3 * s / 6).max())

    # the expansion holds while the third cumulant is small compared with the second
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
        score = x * drift - QUANTILE * math.sqrt(square)
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
        score = x * total - QUANTILE * math.sqrt(variance)
        return float((np.abs(ACCEPTANCE_TILTS) * score - ACCEPTANCE_TILTS**2 * variance / 2).max())

    return _root(evidence, len(ACCEPTANCE_TILTS), level, 1.0)


@lru_cache(maxsize=64)  # audits of as many tokens share it, and its root takes a while
def detectable_variation(n: int, bins: int, level: float) -> float:
    """The smallest total variation from uniform that chi-square detects; inf for one bin.

    sqrt(x / n) / 2, x the noncentrality; x is at least 4 n (total variation)^2.
    """
    if bins < 2:
        return math.inf
    from scipy import optimize, stats  # most commands start sooner without

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
    from scipy import optimize

    return float(optimize.brentq(lambda x: evidence(x) - threshold, 0.0, limit))


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
    from scipy import stats

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
    from scipy import stats

    m = math.floor(n * p) + 1
    return float(2 * (1 - p) * m * stats.binom.pmf(m, n, p) / n) if p < 1 else 0.0

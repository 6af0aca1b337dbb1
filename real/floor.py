"""The noise floor of a sampled text: whether its tokens are draws from the target's distributions, with both error rates stated."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from real.forced import TILTS

BINS, FILL = 20, 20
FOUND = 0.99


@dataclass(frozen=True)
class Floor:
    """What three tests of N tokens say; all together raise a false alarm with chance `risk` at most.

    | field | meaning |
    | --- | --- |
    | tokens | N |
    | surprise, entropy | mean of -log p(token) and its expectation, the mean entropy of p; nats a token |
    | z | their difference in standard deviations, by the exact variance: near normal for many tokens; shown, not judged |
    | heat | at which temperature T / (1 - h), of those tried, the text is likeliest, as a multiple of T |
    | p_heat | bound of the chance of that: 1 / mean over h of Π p_h(token) / p(token), whose expectation is 1 at any N |
    | bins, chi2, p_chi2 | of the tokens' places, uniform in law: Pearson's statistic in equal bins and its chance |
    | distance, expected, limit | total variation of those bins from uniform; its mean by chance; where McDiarmid's bound is `risk` / 3 |
    | risk | chance of a false alarm |
    | finds_heat | the relative error of the temperature that these N tokens show with chance 0.99; inf where they cannot |
    | finds_distance | the total variation, over the bins, that they show with chance 0.99 |
    | alarms | which tests failed: 'temperature', 'places', 'distance' |
    """

    tokens: int
    surprise: float
    entropy: float
    z: float
    heat: float
    p_heat: float
    bins: int
    chi2: float
    p_chi2: float
    distance: float
    expected: float
    limit: float
    risk: float
    finds_heat: float
    finds_distance: float
    alarms: tuple[str, ...]


def floor(surprise: np.ndarray, entropy: np.ndarray, variance: np.ndarray, place: np.ndarray, tilt: np.ndarray, risk: float) -> Floor:
    """Tests the columns of an `Odds`, of all texts together: float64 `[N]`, tilt `[N, len(TILTS)]`.

    1. Temperature: exp(Σ tilt) is a likelihood ratio, so its mean over the tilts exceeds 3 / risk with chance risk / 3 at most (Ville).
    2. Places: given all before it a token's place is uniform, so places are independent: chi-square with bins - 1 degrees of freedom,
       an approximation; at least 20 places a bin. 3. Total variation d of the same bins: P(d >= E d + t) <= exp(-2 N t^2) (McDiarmid).
    ValueError for no token, or a risk outside (0, 1).
    """
    n = len(surprise)
    if not n or not 0 < risk < 1:
        raise ValueError(f"{n} tokens at risk {risk}; expected at least one token and a risk in (0, 1)")
    each, information = risk / 3, float(variance.sum())
    total = tilt.sum(0)
    evidence = np.logaddexp.reduce(total) - math.log(len(TILTS))
    best = int(total.argmax())
    bins = int(np.clip(n // FILL, 1, BINS))
    counts = np.bincount(np.minimum((place * bins).astype(np.int64), bins - 1), minlength=bins)
    chi2 = float(((counts - n / bins) ** 2).sum() * bins / n)
    p_chi2 = float(stats.chi2.sf(chi2, bins - 1)) if bins > 1 else 1.0
    distance = float(np.abs(counts / n - 1 / bins).sum() / 2)
    expected = bins / 2 * _deviation(n, 1 / bins)
    limit = expected + math.sqrt(-math.log(each) / (2 * n))
    found = {"temperature": evidence >= -math.log(each), "places": p_chi2 < each, "distance": distance > limit}
    return Floor(
        n,
        float(surprise.mean()),
        float(entropy.mean()),
        float((surprise - entropy).sum() / math.sqrt(information)) if information > 0 else 0.0,
        float(1 / (1 - TILTS[best])) if total[best] > 0 else 1.0,
        float(min(1.0, math.exp(-evidence))) if evidence > 0 else 1.0,
        bins,
        chi2,
        p_chi2,
        distance,
        expected,
        limit,
        risk,
        _heat_found(information, each),
        _distance_found(n, bins, each),
        tuple(name for name, failed in found.items() if failed),
    )


def _deviation(n: int, p: float) -> float:
    """E |X / n - p| of a binomial X, by de Moivre: 2 (1 - p) m P(X = m) / n with m = floor(n p) + 1."""
    m = math.floor(n * p) + 1
    return float(2 * (1 - p) * m * stats.binom.pmf(m, n, p) / n) if p < 1 else 0.0


def _heat_found(information: float, risk: float) -> float:
    """The smallest tilt of the text's law whose evidence, 2.33 deviations under its mean, still passes; the information is Σ variance."""
    deviation = math.sqrt(information)

    def over(h: float) -> float:
        score = h * information - stats.norm.ppf(FOUND) * deviation
        return float((np.abs(TILTS) * score - TILTS**2 * information / 2).max()) - math.log(len(TILTS) / risk)

    if information <= 0 or over(1.0) < 0:
        return math.inf
    return float(optimize.brentq(over, 0.0, 1.0))


def _distance_found(n: int, bins: int, risk: float) -> float:
    """Half the root of lambda / n, lambda the noncentrality that chi-square shows with chance 0.99: it is at least 4 n (total variation)^2."""
    if bins < 2:
        return math.inf
    critical = stats.chi2.isf(risk, bins - 1)
    shift = optimize.brentq(lambda x: stats.ncx2.sf(critical, bins - 1, x) - FOUND, 1e-3, 100 * critical)
    return float(math.sqrt(shift / n) / 2)

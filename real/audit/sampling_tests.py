"""The noise floor of a sampled text: whether its tokens are draws from the target's distributions, with both error rates stated."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from real.audit.drafter_bias import STEPS, Lean
from real.audit.teacher_forcing import TILTS, Odds

BINS, FILL = 20, 20
FOUND = 0.99


@dataclass(frozen=True)
class Floor:
    """What the tests of N tokens say; all together raise a false alarm with chance `risk` at most.

    | field | meaning |
    | --- | --- |
    | tokens | N |
    | surprise, entropy | mean of -log p(token) and its expectation, the mean entropy of p; nats a token |
    | z | their difference in standard deviations, by the exact variance: near normal for many tokens; shown, not judged |
    | heat | at which temperature T / (1 - h), of those tried, the text is likeliest, as a multiple of T |
    | p_heat | bound of the chance of that: 1 / mean over h of Π p_h(token) / p(token), whose expectation is 1 at any N |
    | bins, chi2, p_chi2 | of the tokens' places, uniform in law: Pearson's statistic in equal bins and its chance |
    | distance, expected, limit | total variation of those bins from uniform; its mean by chance; where McDiarmid's bound raises an alarm |
    | lean_z, p_lean | Σ s(token) in standard deviations, > 0 towards the drafter; a bound of its chance as for heat; None if untested |
    | risk | chance of a false alarm |
    | finds_heat | the relative error of the temperature that these N tokens show with chance of about 0.99; inf where they cannot |
    | finds_distance | the total variation, over the bins, that they show with chance 0.99 |
    | finds_lean | the share of tokens drawn from q in place of p that they show with chance 0.99 |
    | alarms | which tests failed: 'temperature', 'places', 'distance', 'drafter' |
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
    lean_z: float | None
    p_lean: float | None
    risk: float
    finds_heat: float
    finds_distance: float
    finds_lean: float | None
    alarms: tuple[str, ...]


def floor(odds: Odds, lean: Lean | None, risk: float) -> Floor:
    """Tests the tokens of all texts together; each of the m tests may give a false alarm with chance risk / m.

    1. Temperature: exp(Σ tilt) is a likelihood ratio, so its mean over the tilts exceeds m / risk with chance risk / m at most, at any N
    (Markov). 2. Places: given all before it a token's place is uniform, so places are independent: chi-square with bins - 1 degrees of
    freedom; at 20 places a bin, the fewest, its far tail is up to 1.3 times what is stated, for which the others, all bounds, leave room.
    3. Total variation d of the same bins: P(d >= E d + t) <= exp(-2 N t^2) (McDiarmid). 4. Drafter, where `lean` is given: exp(Σ step), as
    in 1. ValueError for no token, or a risk outside (0, 1).
    """
    n = len(odds.surprise)
    if not n or not 0 < risk < 1:
        raise ValueError(
            f"{n} tokens at risk {risk}; expected at least one token and a risk in (0, 1)"
        )
    each, information = risk / (3 if lean is None else 4), float(odds.variance.sum())
    best = int(odds.tilt.sum(0).argmax())
    bins = int(np.clip(n // FILL, 1, BINS))
    counts = np.bincount(np.minimum((odds.place * bins).astype(np.int64), bins - 1), minlength=bins)
    chi2 = float(((counts - n / bins) ** 2).sum() * bins / n)
    expected = bins / 2 * _deviation(n, 1 / bins)
    chances = {
        "temperature": _bound(odds.tilt),
        "places": float(stats.chi2.sf(chi2, bins - 1)) if bins > 1 else 1.0,
    }
    distance, limit = (
        float(np.abs(counts / n - 1 / bins).sum() / 2),
        expected + math.sqrt(-math.log(each) / (2 * n)),
    )
    alarms = [name for name, draws in chances.items() if draws < each] + ["distance"] * (
        distance > limit
    )
    leaning = None, None, None
    if lean is not None:
        spread, draws = float(lean.variance.sum()), _bound(lean.step)
        leaning = _deviations(lean.score, spread), draws, _lean_found(lean, each)
        alarms += ["drafter"] * (draws < each)
    return Floor(
        n,
        float(odds.surprise.mean()),
        float(odds.entropy.mean()),
        _deviations(odds.surprise - odds.entropy, information),
        float(1 / (1 - TILTS[best])) if odds.tilt.sum(0)[best] > 0 else 1.0,
        chances["temperature"],
        bins,
        chi2,
        chances["places"],
        distance,
        expected,
        limit,
        *leaning[:2],
        risk,
        _heat_found(odds, each),
        _distance_found(n, bins, each),
        leaning[2],
        tuple(alarms),
    )


def _bound(ratios: np.ndarray) -> float:
    evidence = np.logaddexp.reduce(ratios.sum(0)) - math.log(ratios.shape[1])
    return math.exp(-evidence) if evidence > 0 else 1.0


def _deviations(centred: np.ndarray, variance: float) -> float:
    return float(centred.sum() / math.sqrt(variance)) if variance > 0 else 0.0


def _deviation(n: int, p: float) -> float:
    """E |X / n - p| of a binomial X, by de Moivre: 2 (1 - p) m P(X = m) / n with m = floor(n p) + 1."""
    m = math.floor(n * p) + 1
    return float(2 * (1 - p) * m * stats.binom.pmf(m, n, p) / n) if p < 1 else 0.0


def _heat_found(odds: Odds, risk: float) -> float:
    """The larger of the least errors to either side, by cumulants up to the third.

    Under a tilt x the sum of -log p(token) - entropy has mean x V + x^2 S / 2 and variance V + x S, V and S the sums of `variance` and
    `skew`; a tilt's log is h times that sum - h^2 V / 2 - h^3 S / 6.
    """
    V, S = float(odds.variance.sum()), float(odds.skew.sum())

    def evidence(x: float, sign: int) -> float:
        s = sign * S
        score = x * V + x * x * s / 2 - stats.norm.ppf(FOUND) * math.sqrt(max(V + x * s, 0.0))
        h = np.abs(TILTS)
        return float((h * score - h**2 * V / 2 - h**3 * s / 6).max())

    # a third cumulant holds where it is small beside the second
    furthest = min(1.0, V / abs(S)) if S else 1.0
    return max(_least(lambda x: evidence(x, sign), len(TILTS), risk, furthest) for sign in (1, -1))


def _lean_found(lean: Lean, risk: float) -> float:
    """The least share x of draws from q: s then has mean x Σ q s; a step's log is h s - h^2 s^2 / 2 to second order."""
    squares, drift = (float(lean.variance.sum()), float(lean.square.sum())), float(lean.pull.sum())

    def evidence(x: float) -> float:
        square = (1 - x) * squares[0] + x * squares[1]
        score = x * drift - stats.norm.ppf(FOUND) * math.sqrt(square)
        return float((np.abs(STEPS) * score - STEPS**2 * square / 2).max())

    return _least(evidence, len(STEPS), risk, 1.0)


def _least(evidence: Callable[[float], float], steps: int, risk: float, furthest: float) -> float:
    """Where evidence, so low that chance 0.99 lies above it, passes; inf where it does not up to `furthest`."""
    wanted = math.log(steps / risk)
    return (
        float(optimize.brentq(lambda x: evidence(x) - wanted, 0.0, furthest))
        if evidence(furthest) > wanted
        else math.inf
    )


def _distance_found(n: int, bins: int, risk: float) -> float:
    """sqrt(x / n) / 2, x the noncentrality that chi-square shows with chance 0.99; x is at least 4 n (total variation)^2."""
    if bins < 2:
        return math.inf
    critical = stats.chi2.isf(risk, bins - 1)
    shift = optimize.brentq(
        lambda x: stats.ncx2.sf(critical, bins - 1, x) - FOUND, 1e-3, 100 * critical
    )
    return float(math.sqrt(shift / n) / 2)

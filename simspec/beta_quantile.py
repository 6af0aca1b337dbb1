"""Quantiles of the Beta distribution in compiled code."""

import math

from simspec.compile_cache import cached_njit

_UNDERFLOW = 1e-280


@cached_njit
def _fraction(a: float, b: float, x: float) -> float:
    """1 + d_1 / (1 + d_2 / (1 + ...)), DLMF 8.17.22, by Lentz's method; quick for x < (a + 1) / (a
    + b + 2).
    """
    value = upper = 1.0
    lower = 0.0
    for j in range(1, 20000):
        m = j // 2
        if j % 2 == 0:
            d = m * (b - m) * x / ((a + j - 1.0) * (a + j))
        else:
            d = -(a + m) * (a + b + m) * x / ((a + j - 1.0) * (a + j))
        lower = 1.0 + d * lower
        upper = 1.0 + d / upper
        # Exact zeros would end the recursion.
        lower = 1.0 / (lower if lower != 0.0 else 1e-300)
        upper = upper if upper != 0.0 else 1e-300
        value *= upper * lower
        if abs(upper * lower - 1.0) < 1e-15:
            break
    return value


@cached_njit
def _softplus(t: float) -> float:
    return max(t, 0.0) + math.log1p(math.exp(-abs(t)))


@cached_njit
def _stirling(z: float) -> float:
    return (
        1.0 / 12.0 - (1.0 / 360.0 - (1.0 / 1260.0 - 1.0 / (1680.0 * z * z)) / (z * z)) / (z * z)
    ) / z


@cached_njit
def log_beta(a: float, b: float) -> float:
    """ln B(a, b) for a, b > 0, by Stirling's series (DLMF 5.11.1) where large log-gammas would
    cancel.
    """
    small, big = min(a, b), max(a, b)
    if big < 20.0:
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    total = small + big
    ratio = (
        (big - 0.5) * math.log1p(small / big)
        + small * math.log(total)
        - small
        + _stirling(total)
        - _stirling(big)
    )
    return math.lgamma(small) - ratio


@cached_njit
def beta_quantile(u: float, a: float, b: float) -> float:
    """The x in (0, 1) with I_x(a, b) = u, for 0 < u < 1 and a, b > 0: an exact Beta(a, b) sample
    from one uniform.

    Newton's steps in t = log(x / (1 - x)) on the logarithm of the smaller tail (concave in t, its
    slope there the density of t over the tail), kept inside a bracket. I_x by its continued
    fraction, DLMF 8.17.22.
    """
    norm = log_beta(a, b)
    low, high = -1e5, 1e5
    t = math.log(a / b)
    for _ in range(200):
        log_x, log_rest = -_softplus(-t), -_softplus(t)
        x = math.exp(log_x)
        density = math.exp(a * log_x + b * log_rest - norm)
        if x * (a + b + 2.0) < a + 1.0:
            left = density / (a * _fraction(a, b, x))
            right = 1.0 - left
        else:
            right = density / (b * _fraction(b, a, math.exp(log_rest)))
            left = 1.0 - right
        tail = left if u <= 0.5 else right
        # Far out on the side of the smaller tail, where tail and density lose digits or vanish.
        if tail < _UNDERFLOW:
            step = math.inf if u > 0.5 else -math.inf
        elif u <= 0.5:
            step = math.log(tail / u) * tail / density
        else:
            step = -math.log(tail / (1.0 - u)) * tail / density
        if step > 0.0:
            high = t
        else:
            low = t
        if abs(step) < 1e-12:
            break
        t = t - step if low < t - step < high else 0.5 * (low + high)
        if high - low < 1e-13 * max(1.0, abs(t)):
            break
    return math.exp(-_softplus(-t))

"""Beta draws at addresses: two Gamma variates by rejection, from the words of Philox blocks."""

import math

import numpy as np

from simspec.compile_cache import cached_njit
from simspec.rng import philox, unit

_WORDS = 2.0**32
_KEY0, _KEY1 = np.uint64(0x62657461), np.uint64(0x64726177)
_GAMMA, _BOOST = np.uint64(0), np.uint64(1)
_TRIALS = 400  # a trial is refused with a probability below 0.1


@cached_njit
def accepts(x: float, v: float, d: float, u: float) -> bool:
    """Whether the Gamma variate d v, v = (1 + x / sqrt(9 d))^3, is taken for a normal x and a
    uniform u.

    v > 0 and ln u < x^2 / 2 + d (1 - v + ln v), after a squeeze without logarithms (Marsaglia and
    Tsang, "A simple method for generating gamma variables", ACM TOMS 26, 2000).
    """
    if v <= 0.0:
        return False
    square = x * x
    if u < 1.0 - 0.0331 * square * square:
        return True
    return math.log(u) < 0.5 * square + d * (1.0 - v + math.log(v))


@cached_njit
def beta_draw(u: float, index: int, a: float, b: float) -> float:
    """The draw of Beta(a, b), a, b > 0, at address (u, index): u = (word + 1/2) / 2^32, index <
    2^32.

    X / (X + Y), X ~ Gamma(a), Y ~ Gamma(b). Trial t takes its numbers from the Philox block at
    counter (word, index, t, 0): a pair of normals (Box and Muller) and a uniform for either
    variate; the first trial in which both are taken decides. A shape below 1 is raised by 1 and its
    variate multiplied by U^(1 / shape), in logarithms, which tiny shapes need.

    A policy receives one draw a call. u is a bijection of a random word, so words of another Philox
    stream addressed by it are as good as fresh, and independent across indices. Two rounds share u
    once in 2^32 pairs.
    """
    low_a, low_b = a < 1.0, b < 1.0
    d = (a + 1.0 if low_a else a) - 1.0 / 3.0
    e = (b + 1.0 if low_b else b) - 1.0 / 3.0
    scale_d, scale_e = 1.0 / math.sqrt(9.0 * d), 1.0 / math.sqrt(9.0 * e)
    address, place = np.uint64(u * _WORDS), np.uint64(index)
    v = w = 1.0
    for trial in range(_TRIALS):
        w0, w1, w2, w3 = philox(address, place, np.uint64(trial), _GAMMA, _KEY0, _KEY1)
        radius, angle = math.sqrt(-2.0 * math.log(unit(w0))), 2.0 * math.pi * unit(w1)
        x, y = radius * math.cos(angle), radius * math.sin(angle)
        v, w = 1.0 + scale_d * x, 1.0 + scale_e * y
        v, w = v * v * v, w * w * w
        if accepts(x, v, d, unit(w2)) and accepts(y, w, e, unit(w3)):
            break
    first, second = d * v, e * w
    if not (low_a or low_b):
        return first / (first + second)
    w0, w1, w2, w3 = philox(address, place, _GAMMA, _BOOST, _KEY0, _KEY1)
    log_odds = math.log(first) - math.log(second)
    if low_a:
        log_odds += math.log(unit(w0)) / a
    if low_b:
        log_odds -= math.log(unit(w1)) / b
    return 1.0 / (1.0 + math.exp(-log_odds)) if log_odds > -700.0 else 0.0

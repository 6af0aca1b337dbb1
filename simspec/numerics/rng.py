"""Addressed random draws: Philox-4x32-10 with the counter words as the address; Beta draws.

A draw is a pure function of its address, so it does not depend on threads, chunks, order or on
which other draws were made. The generator is the one of Salmon, Moraes, Dror and Shaw, "Parallel
random numbers: as easy as 1, 2, 3" (SC 2011); tests hold it to the published Random123 vectors.
"""

import math
from typing import Any

import numba
import numpy as np

from simspec.numerics.compile import cached_njit

njit: Any = numba.njit  # whose annotations take a call of what it decorates for a decoration
POLICY, DRAFT, ACCEPT, RESIDUAL, GUMBEL, ARRIVAL = 0, 1, 2, 3, 4, 5

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@njit
def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Philox-4x32-10 of counter (c0..c3) under key (k0, k1): four 32-bit words held in uint64.

    All six arguments are uint64 below 2**32. Every product of two 32-bit words fits 64 bits, so the
    interpreted run (NUMBA_DISABLE_JIT=1) never overflows.
    """
    for _ in range(10):
        p0 = _M0 * c0
        p1 = _M1 * c2
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
        k0 = (k0 + _W0) & _LOW
        k1 = (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@njit
def block(seed: Any, sequence: Any, round_: Any, quarter: Any, role: Any) -> Any:
    """The four uniforms, float64 in (0, 1), of slots 4*quarter .. 4*quarter + 3: u = (word + 0.5) /
    2**32.

    key = (seed's low word, high word), counter = (sequence, round, quarter, role). Arguments are
    integers in the ranges that `uniform` checks; here nothing is checked.
    """
    s = np.uint64(seed)
    w0, w1, w2, w3 = philox(
        np.uint64(sequence), np.uint64(round_), np.uint64(quarter), np.uint64(role),
        s & _LOW, s >> _HALF,
    )  # fmt: skip
    return unit(w0), unit(w1), unit(w2), unit(w3)


@njit
def unit(word: Any) -> Any:
    """The uniform, float64 in (0, 1), of a 32-bit word: (word + 0.5) / 2**32."""
    return (np.float64(word) + 0.5) * 2.0**-32


@cached_njit
def _word(seed: Any, sequence: Any, round_: Any, slot: Any, role: Any) -> Any:
    return block(seed, sequence, round_, slot >> 2, role)[slot & 3]


@cached_njit
def _fill_uniforms(out: Any, seed: Any, sequence: Any, position: Any) -> Any:
    for v in range(0, out.shape[0], 4):
        u = block(seed, sequence, position, v // 4, GUMBEL)
        for i in range(min(4, out.shape[0] - v)):
            out[v + i] = u[i]


@cached_njit
def _fill_first_slots(out: Any, seed: Any, sequence: Any, role: Any) -> Any:
    for i in range(out.shape[0]):
        for t in range(out.shape[1]):
            out[i, t] = block(seed, sequence[i], t, 0, role)[0]


def check_seed(seed: int) -> np.uint64:
    """The seed as uint64; ValueError unless 0 <= seed < 2**64."""
    if not 0 <= int(seed) < 1 << 64:
        raise ValueError(f"seed is {seed}, expected 0 <= seed < 2**64: pass a non-negative integer")
    return np.uint64(int(seed))


def _check_word(name: str, value: int) -> int:
    if not 0 <= int(value) < 1 << 32:
        raise ValueError(
            f"{name} is {value}, expected 0 <= {name} < 2**32: it is one word of the draw's address"
        )
    return int(value)


def uniform(seed: int, sequence: int, round: int, slot: int, role: int) -> float:
    """The uniform draw in (0, 1) at address (seed, sequence, round, slot, role).

    seed < 2**64; sequence, round and role < 2**32; slot < 2**34 (one Philox block serves slots
    4m..4m+3). The grid is (word + 0.5) * 2**-32, so 0 and 1 never occur. ValueError outside the
    ranges.
    """
    _check_word("slot // 4", slot // 4)
    words = (_check_word("sequence", sequence), _check_word("round", round))
    return float(_word(check_seed(seed), *words, int(slot), _check_word("role", role)))


def uniform_rows(seed: int, sequence: np.ndarray, rounds: int, role: int) -> np.ndarray:
    """`uniform` at slot 0 of all rounds of some sequences: int64[n] -> float64[n, rounds]."""
    key, sequence = check_seed(seed), np.asarray(sequence, dtype=np.int64)
    for value in (sequence.min(initial=0), sequence.max(initial=0)):
        _check_word("sequence", value)
    out = np.empty((len(sequence), _check_word("rounds", rounds)))
    _fill_first_slots(out, key, sequence, _check_word("role", role))
    return out


def gumbel(seed: int, sequence: int, position: int, vocab: int) -> np.ndarray:
    """Standard Gumbel noise -log(-log(u)), float64[vocab], fixed for one text position.

    u of entry v sits at counter (sequence, position, v // 4, GUMBEL), word v % 4. Keyed by position
    and not by round, so that the target and a drafter share it (the coupled rule). ValueError
    outside the ranges.
    """
    return gumbel_rows(seed, sequence, np.array([position]), vocab)[0]


def gumbel_rows(seed: int, sequence: int, positions: np.ndarray, vocab: int) -> np.ndarray:
    """`gumbel` for several positions: int64[n] -> float64[n, vocab]."""
    key = check_seed(seed)
    _check_word("sequence", sequence)
    positions = np.asarray(positions, dtype=np.int64)
    if positions.ndim != 1:
        raise ValueError(f"positions has {positions.ndim} axes, expected 1: pass an int64[n] array")
    if vocab < 1:
        raise ValueError(f"vocab is {vocab}, expected at least 1: pass the vocabulary's size")
    out = np.empty((len(positions), vocab))
    for row, position in zip(out, positions):
        _fill_uniforms(row, key, int(sequence), _check_word("position", position))
    return -np.log(-np.log(out))


_WORDS = 2.0**32
_KEY0, _KEY1 = np.uint64(0x62657461), np.uint64(0x64726177)
_GAMMA, _BOOST = np.uint64(0), np.uint64(1)
_TRIALS = 400  # a trial is refused with a probability below 0.1


@njit
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


@njit
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

"""Addressed random draws: Philox-4x32-10 with the counter words as the address.

A draw is a pure function of its address, so it does not depend on threads, chunks, order or on
which other draws were made. The generator is the one of Salmon, Moraes, Dror and Shaw, "Parallel
random numbers: as easy as 1, 2, 3" (SC 2011); tests hold it to the published Random123 vectors.
"""

from typing import Any

import numpy as np

from simspec.compile_cache import cached_njit

POLICY, DRAFT, ACCEPT, RESIDUAL, GUMBEL = 0, 1, 2, 3, 4

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@cached_njit
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


@cached_njit
def block(seed: Any, sequence: Any, round_: Any, quarter: Any, role: Any) -> Any:
    """The four uniforms, float64 in (0, 1), of slots 4*quarter .. 4*quarter + 3: u = (word + 0.5) /
    2**32.

    key = (seed's low word, high word), counter = (sequence, round, quarter, role). Arguments are
    integers in the ranges that `uniform` checks; here nothing is checked.
    """
    s = np.uint64(seed)
    w0, w1, w2, w3 = philox(
        np.uint64(sequence),
        np.uint64(round_),
        np.uint64(quarter),
        np.uint64(role),
        s & _LOW,
        s >> _HALF,
    )
    return unit(w0), unit(w1), unit(w2), unit(w3)


@cached_njit
def unit(word: Any) -> Any:
    """The uniform, float64 in (0, 1), of a 32-bit word: (word + 0.5) / 2**32."""
    return (np.float64(word) + 0.5) * 2.0**-32


@cached_njit
def _fill_uniforms(out: Any, seed: Any, sequence: Any, position: Any) -> Any:
    for v in range(0, out.shape[0], 4):
        u = block(seed, sequence, position, v // 4, GUMBEL)
        for i in range(min(4, out.shape[0] - v)):
            out[v + i] = u[i]


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
    quarter = _check_word("slot // 4", slot // 4)
    words = block(
        check_seed(seed),
        _check_word("sequence", sequence),
        _check_word("round", round),
        quarter,
        _check_word("role", role),
    )
    return float(words[slot % 4])


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

"""Rounding tolerances of an audit, by dtype."""

from dataclasses import dataclass

import numpy as np

from real.equality import MAX_EXCEPTIONS, NEAR_TIE
from simspec import Trace
from simspec.trace.quantization import decode_margin


@dataclass(frozen=True)
class Tolerance:
    """How far a token's score may lie below the best one because of rounding in `dtype`.

    | field | meaning |
    | --- | --- |
    | dtype | float64, float32 or bfloat16 |
    | nats, ulps | a gap is excused up to `nats`, or up to `ulps` units in the last place |
    | share | largest expected share of tokens with an excused gap |
    """

    dtype: str
    nats: float
    ulps: float
    share: float


TOLERANCES = (
    Tolerance("float64", 1e-9, 3, MAX_EXCEPTIONS),
    Tolerance("float32", NEAR_TIE, 3, MAX_EXCEPTIONS),
    Tolerance("bfloat16", 0.3, 3, 0.02),
)
"""From fine to coarse. Two bfloat16 runs differ in about 0.2% of tokens."""


def tolerance_of(*dtypes: str) -> Tolerance:
    """The tolerance of the coarsest of these dtypes."""
    return max((t for t in TOLERANCES if t.dtype in dtypes), key=lambda t: t.nats)


@dataclass(frozen=True)
class FirstDifference:
    """Where two sequences differ first, and the target's smaller recorded margin there."""

    sequence: int
    position: int
    margin: float


@dataclass(frozen=True)
class NearTies:
    """The comparison of two recordings' sequences.

    | field | meaning |
    | --- | --- |
    | sequences, tokens | compared; tokens up to and including each first difference |
    | near_ties | first differences with a margin under `NEAR_TIE`: rounding decided |
    | failures | all other first differences |
    """

    sequences: int
    tokens: int
    near_ties: tuple[FirstDifference, ...]
    failures: tuple[FirstDifference, ...]


def near_ties(one: Trace, other: Trace) -> NearTies:
    """Compares the target's sequences in two recordings of the same prompts, as of batch 1 and 16.

    ValueError for other prompts or draw addresses, and for recordings without margins.
    """
    same = all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("prompt", "prompt_offset", "sequence", "budget")
    )
    if not same:
        raise ValueError("the recordings are of other prompts; expected the same in one order")
    if one.margin is None or other.margin is None:
        raise ValueError("a recording has no margins; expected rule greedy or coupled")
    tokens = 0
    excused: list[FirstDifference] = []
    failed: list[FirstDifference] = []
    for s in range(one.sequences):
        first, second = (slice(t.offset[s], t.offset[s + 1]) for t in (one, other))
        a, b = one.token[first], other.token[second]
        shared = min(len(a), len(b))
        differ = np.flatnonzero(a[:shared] != b[:shared])
        if not len(differ) and len(a) == len(b):
            tokens += len(a)
            continue
        # of equal tokens the shorter ended otherwise: by another budget or set of end tokens
        position = int(differ[0]) if len(differ) else shared - 1
        tokens += position + 1
        codes = one.margin[first][position], other.margin[second][position]
        margin = float(decode_margin(np.array(codes)).min()) if len(differ) else float("inf")
        (excused if margin < NEAR_TIE else failed).append(FirstDifference(s, position, margin))
    return NearTies(one.sequences, tokens, tuple(excused), tuple(failed))

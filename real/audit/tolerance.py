"""Rounding tolerances of an audit, by dtype."""

from dataclasses import dataclass

from real.equality import MAX_EXCEPTIONS, NEAR_TIE


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

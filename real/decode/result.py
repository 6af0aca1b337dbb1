"""The result of a decoded sequence, and of each of its rounds."""

from dataclasses import dataclass

import numpy as np

from real.decode.verify import VerifyResult


@dataclass(frozen=True)
class Round:
    """One finished round, as the callback `on_round` of `real.decode.loop.decode` receives it.

    | field | meaning |
    | --- | --- |
    | position | new tokens committed before the round |
    | computed, drafted, accepted | draft tokens computed, submitted, accepted |
    | verified | the tokens committed, their path through the pass's rows, and its scores |
    """

    position: int
    computed: int
    drafted: int
    accepted: int
    verified: VerifyResult


@dataclass(frozen=True)
class DecodeResult:
    """One decoded sequence of L new tokens in R rounds.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | token | int32 `[L]` | the new tokens, the end token included |
    | position | int64 `[R]` | new tokens committed before each round |
    | computed, drafted, accepted | int64 `[R]` | as in `simspec.Rounds` |
    | seconds | float64 `[R, 4]` | drafting, verification, policy, other |
    | gap | float64 `[R]` | smallest score gap that decided which nodes a tree has; inf for chains |
    """

    token: np.ndarray
    position: np.ndarray
    computed: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray
    seconds: np.ndarray
    gap: np.ndarray

"""The exact distribution of the rounds of a synthetic sequence."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RoundDistribution:
    """What decides the rounds of one sequence of `rows` tokens under a memoryless policy.

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | accept | float64[R, K, Z] | P(accepted at depth j + 1 from row t, given those before) |
    | | | z: the hidden state at position t + j; R = rows, or 1 if all rows are alike |
    | move | float64[Z, Z] | the hidden state's transitions from one position to the next |
    | start | float64[Z] | its distribution at position 0 |
    | go | float64[K] | P(a draft of j tokens continues to j + 1), j = 0 .. K - 1 |
    | rows | int | tokens of a sequence; a draft is capped at rows left - 1, no end tokens |
    """

    accept: Array
    move: Array
    start: Array
    go: Array
    rows: int

    @property
    def K(self) -> int:
        return len(self.go)

    def rounds(self, row: int) -> Array:
        """P[k, a, z, z']: a round from this row in state z drafts k, accepts a and ends in z'."""
        row_of_accept = row if len(self.accept) > 1 else 0
        return _rounds(self, min(self.K, self.rows - row - 1), row_of_accept)


@lru_cache(maxsize=512)  # distributions hash by identity
def _rounds(distribution: RoundDistribution, cap: int, row: int) -> Array:
    accept, move = distribution.accept[row], distribution.move
    Z = len(distribution.start)
    probability, reached = np.zeros((cap + 1, cap + 1, Z, Z)), np.eye(Z)
    drafts = np.cumprod([1.0, *distribution.go[:cap]])
    exactly = drafts - np.append(drafts[1:], 0.0)  # P(k = j): all that reach the cap stop there
    for a in range(cap + 1):
        probability[a, a] = exactly[a] * (reached @ move)
        if a < cap:
            missed = (reached * (1 - accept[a])) @ move
            probability[a + 1 :, a] = exactly[a + 1 :, None, None] * missed
            reached = (reached * accept[a]) @ move
    return probability

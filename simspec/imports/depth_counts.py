"""DepthCounts: drafts tried and accepted at each depth, by request."""

from dataclasses import dataclass

import numpy as np

DEEPEST = 255
"""Longest draft, as in recordings."""


@dataclass(frozen=True, eq=False)
class DepthCounts:
    """Rounds of S requests; depth j is tried where all before it are accepted and j is drafted.

    | field    | dtype, shape | meaning                                   |
    | -------- | ------------ | ----------------------------------------- |
    | tried    | int64[S, K]  | rounds that tried depth j + 1             |
    | accepted | int64[S, K]  | those of them whose token was accepted    |
    | clusters | bool         | S counts requests; False: all are in one  |

    ValueError unless accepted <= tried, and what is tried was accepted one depth before.
    """

    tried: np.ndarray
    accepted: np.ndarray
    clusters: bool = True

    def __post_init__(self) -> None:
        if self.tried.ndim != 2 or self.tried.shape != self.accepted.shape:
            raise ValueError("depth counts expect two tables [requests, depths] of one shape")
        if (self.accepted > self.tried).any() or (self.accepted < 0).any():
            raise ValueError("more drafts are accepted than tried at some depth: the file is wrong")
        if (self.tried[:, 1:] > self.accepted[:, :-1]).any():
            raise ValueError(
                "acceptance rises with depth: expected the share of rounds whose first j drafts "
                "are all accepted, which never rises"
            )

    @property
    def K(self) -> int:
        return self.tried.shape[1]


def of_rounds(offset: np.ndarray, drafted: np.ndarray, accepted: np.ndarray) -> DepthCounts:
    """The counts of rounds, request s from offset[s] to offset[s + 1] - 1."""
    depth = np.arange(1, max(int(drafted.max(initial=0)), 1) + 1)
    right = accepted[:, None] >= depth
    tried = (drafted[:, None] >= depth) & (accepted[:, None] >= depth - 1)
    request = np.repeat(np.arange(len(offset) - 1), np.diff(offset))
    counts = np.zeros((2, len(offset) - 1, len(depth)), np.int64)
    np.add.at(counts[0], request, tried)
    np.add.at(counts[1], request, right)
    return DepthCounts(counts[0], counts[1])


def of_histograms(counts: np.ndarray, clusters: bool = True) -> DepthCounts:
    """The counts of histograms int64[S, K + 1]: rounds of K drafts that accepted 0, 1 .. K."""
    at_least = counts[:, ::-1].cumsum(axis=1)[:, ::-1]
    return DepthCounts(at_least[:, :-1], at_least[:, 1:], clusters)


def of_totals(rounds: int, at_least: np.ndarray) -> DepthCounts:
    """The counts of totals: rounds of K drafts, and those that accepted at least 1 .. K."""
    return DepthCounts(np.concatenate(([rounds], at_least[:-1]))[None], at_least[None], False)

"""DepthCounts: drafts tried and accepted at each depth, by request."""

from dataclasses import dataclass

import numpy as np

DEEPEST = 255
"""Longest draft, as in recordings."""

LARGEST = 1 << 25
"""Counts of a table of requests by depth."""


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
    requests, K = len(offset) - 1, max(int(drafted.max(initial=0)), 1)
    check_size(requests, K)
    request = np.repeat(np.arange(requests), np.diff(offset))

    def at_least(depth: np.ndarray) -> np.ndarray:
        """int64[requests, K]: rounds that got to depth 1 to K."""
        size = requests * (K + 1)
        counts = np.bincount(request * (K + 1) + depth, minlength=size).reshape(requests, K + 1)
        return counts[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]

    return DepthCounts(at_least(np.minimum(drafted, accepted + 1)), at_least(accepted))


def check_size(requests: int, K: int) -> None:
    """ValueError where a table of requests by depth would be too large."""
    if requests * K > LARGEST:
        raise ValueError(
            f"{requests} requests by {K} depths are over {LARGEST} counts: split the file"
        )


def of_histograms(counts: np.ndarray, clusters: bool = True) -> DepthCounts:
    """The counts of histograms int64[S, K + 1]: rounds of K drafts that accepted 0 to K."""
    at_least = counts[:, ::-1].cumsum(axis=1)[:, ::-1]
    return DepthCounts(at_least[:, :-1], at_least[:, 1:], clusters)


def of_totals(rounds: int, at_least: np.ndarray) -> DepthCounts:
    """The counts of totals: rounds of K drafts, and those that accepted at least 1 to K."""
    return DepthCounts(np.concatenate(([rounds], at_least[:-1]))[None], at_least[None], False)

"""Histograms of accepted drafts: their identities, and requests of one draft length together."""

from collections.abc import Mapping, Sequence

import numpy as np

from simspec.imports.depth_counts import DEEPEST, DepthCounts, check_size, of_histograms
from simspec.imports.fields import Fields

Part = tuple[int, int, np.ndarray]
"""A request, its draft length K, and its rounds that accepted 0, 1 .. K tokens."""


def dense(fields: Fields, key: str, K: int | None = None) -> np.ndarray:
    """int64 of a list or of an object {accepted: rounds}; K + 1 entries where K is given."""
    if type(fields.values.get(key)) is dict:
        table = fields.table(key)
        size = max([*table, K or 0]) + 1
        if size > DEEPEST + 1:
            raise fields.error(key, size - 1, f"at most {DEEPEST} accepted tokens")
        counts = np.zeros(size, np.int64)
        counts[list(table)] = list(table.values())
    else:
        counts = fields.wholes(key)
    if len(counts) > DEEPEST + 1 or K is not None and len(counts) != K + 1:
        raise fields.error(key, counts.tolist(), f"{'256 at most' if K is None else K + 1} counts")
    return counts


def check_sums(fields: Fields, key: str, counts: np.ndarray, rounds: int, accepted: int) -> None:
    """ValueError unless the counts sum to the rounds, and weighted ones to the accepted tokens."""
    sums = int(counts.sum()), int(counts @ np.arange(len(counts)))
    if sums != (rounds, accepted):
        raise ValueError(
            f"{fields.place}: {key} holds {sums[0]} rounds with {sums[1]} accepted tokens, the "
            f"counters say {rounds} and {accepted}: does it count the bonus token?"
        )


def constant(parts: Sequence[Part], withheld: Mapping[str, str]) -> int | None:
    """The draft length of all rounds, None where it varies or is withheld."""
    lengths = {K for _, K, counts in parts if counts.any()}
    return max(lengths) if len(lengths) == 1 and not withheld and max(lengths) else None


def by_length(parts: Sequence[Part], requests: int) -> dict[int, DepthCounts]:
    """{K: DepthCounts} of rounds by their draft length; K = 0 tried nothing."""
    tables: dict[int, np.ndarray] = {}
    for request, K, counts in parts:
        if K > 0:
            if K not in tables:
                check_size(requests, K)
            tables.setdefault(K, np.zeros((requests, K + 1), np.int64))[request] += counts
    return {K: of_histograms(tables[K]) for K in sorted(tables)}

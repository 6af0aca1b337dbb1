"""Histograms keyed by emitted tokens a round, bonus token included, as Model-Optimizer has them."""

import numpy as np

from simspec.imports.fields import Fields
from simspec.imports.histograms import by_length, dense
from simspec.imports.kinds import PooledCounts
from simspec.imports.options import ImportOptions
from simspec.imports.round_lists import origin_of
from simspec.imports.source import Source
from simspec.imports.totals import mean_of

PER_STEP = "mean over steps of the emitted tokens (bonus token included)"


def of_emitted_lengths(
    source: Source, options: ImportOptions, row: Fields, key: str, block: str = ""
) -> PooledCounts:
    """Counts of steps that emitted 1 to K + 1 tokens; K: `options.drafted`, or the most accepted.

    block: why acceptance has no depth there; ''. ValueError where a step emits more than K + 1.
    """
    emitted = dense(row, key)
    notes: tuple[str, ...] = ()
    if emitted[:1].any():
        raise ValueError(f"{key} counts steps of 0 tokens, expected lengths with the bonus token")
    counts = emitted[1:]
    if not counts.any():
        raise ValueError(f"{key} is empty: nothing can be concluded")
    K = options.drafted or max(len(counts) - 1, 1)
    if counts[K + 1 :].any():
        raise ValueError(f"{key} holds steps of {len(counts)} tokens, over K + 1 = {K + 1}")
    if options.drafted is None:
        notes = (f"the file gives no draft length: K = {K} is its most accepted",)
    rounds, accepted = int(counts.sum()), int(counts @ np.arange(len(counts)))
    padded = np.pad(counts, (0, K + 1))[: K + 1]
    by_depth = {} if block else by_length([(0, K, padded)], 1)
    return PooledCounts(
        origin_of(source), None, rounds, None, accepted, mean_of(rounds, accepted), PER_STEP, None,
        by_depth, max(by_depth, default=None), {"acceptance by depth": block} if block else {},
        notes=notes,
    )  # fmt: skip

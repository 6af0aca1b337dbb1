"""Seconds of sequences at the replicates of a cost: counts of its parts times their prices."""

import numpy as np
from numpy.typing import NDArray

from simspec.cost import CostModel
from simspec.rounds import Rounds

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


def replicate_seconds(
    rounds: Rounds, cost: CostModel, tree: tuple[Integers, Integers] | None = None
) -> Array:
    """float64[S, R]: seconds of each sequence's rounds at each of the cost's replicates.

    Equal to sums of `CostModel.seconds`, or `seconds_tree` for tree = (rows, backlog), which are
    linear in the costs. One count prices all replicates. ValueError as there.
    """
    sequences = len(rounds.offset) - 1
    if not cost.replicates:
        return np.empty((sequences, 0))
    prices = np.stack([_prices(replicate) for replicate in cost.replicates], axis=-1)
    return _counts(rounds, cost, tree) @ prices


def _prices(cost: CostModel) -> Array:
    return np.concatenate((cost.draft, cost.verify, cost.catch_up, [cost.overhead, cost.node]))


def _counts(rounds: Rounds, cost: CostModel, tree: tuple[Integers, Integers] | None) -> Array:
    """float64[S, parts]: how often each sequence pays each price of `_prices`."""
    per_sequence, drafts = np.diff(rounds.offset), rounds.computed > 0
    sequences, sequence = len(per_sequence), np.repeat(np.arange(len(per_sequence)), per_sequence)
    after = (rounds.accepted == rounds.computed).astype(np.int64) if tree is None else tree[1]
    backlog = np.minimum(_backlog(rounds, drafts, after), len(cost.catch_up) - 1)
    further = np.zeros(len(rounds)) if tree is None else np.maximum(tree[0] - rounds.computed, 0)
    columns = [
        np.bincount(sequence * size + paid, minlength=sequences * size).reshape(sequences, size)
        for size, paid in (
            (len(cost.draft), rounds.computed),
            (len(cost.verify), rounds.drafted),
            (len(cost.catch_up), np.where(drafts, backlog, 0)),
        )
    ]
    nodes = np.bincount(sequence, further, sequences)
    return np.column_stack((*columns, per_sequence, nodes)).astype(np.float64)


def _backlog(rounds: Rounds, drafts: NDArray[np.bool_], after: Integers) -> Integers:
    """int64[R]: the drafter's backlog before each round, see `round_cost.next_backlog`."""
    index = np.arange(len(rounds))
    first = np.repeat(rounds.offset[:-1], np.diff(rounds.offset))
    drafted = np.maximum.accumulate(np.where(drafts, index, -1))
    last = np.concatenate(([-1], drafted[:-1]))
    found: Integers = np.where(last >= first, index - last - 1 + after[last], index - first)
    return found

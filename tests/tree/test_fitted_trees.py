"""Which accuracies fitted trees are built from."""

from dataclasses import replace

import numpy as np
import pytest
from tree_strategies import ranked

from simspec import CostModel, synthetic
from simspec.policies.trees import RULES, optimal_tree
from simspec.tree.search import rank_acceptance

COST = CostModel([0, 0.01, 0.02], 1 + 0.01 * np.arange(9), [0.0], 0.0, 1.0)


def hard_then_easy():
    """Four first tokens of ten are right; the second one is where the first one is not.

    Behind a right first token the target's second one is the drafter's second choice.
    """
    trace = synthetic.iid(0.0, 1, 400, 2)
    right = np.arange(400) % 10 < 4
    first, second = np.where(right, 0, 200), np.where(right, 1, 0)
    rank = np.stack((first, second), 1).astype(np.uint8)
    return replace(trace, run=right.astype(np.uint8), rank=rank)


def test_medusa_counts_every_row_and_sequoia_the_reached_ones():
    """Behind a right first token the second is of rank 1; over all rows it is of rank 0."""
    trace = hard_then_easy()
    every = rank_acceptance(trace, reached=False)[1]
    reached = rank_acceptance(trace)[1]
    assert every[0] == pytest.approx(0.6, abs=0.01)
    assert reached[0] == 0
    assert optimal_tree(2, "medusa").resolve(trace, COST).tree.paths == ((0,), (0, 0))
    assert optimal_tree(2).resolve(trace, COST).tree.paths == ((0,), (0, 1))


@pytest.mark.parametrize("rule", RULES)
def test_trees_are_fitted_on_the_sequences_that_are_named(rule):
    """Sequence 0 accepts chains, sequence 1 second choices."""
    chains = ranked(synthetic.iid(1.0, 1, 200, 2), 1)
    rank = chains.rank.copy()
    second = replace(chains, run=np.zeros_like(chains.run), rank=np.maximum(rank, 1))
    both = joined(chains, second)
    trees = [optimal_tree(2, rule, [s]).resolve(both, COST).tree.paths for s in (0, 1)]
    assert trees[0] == ((0,), (0, 0))
    assert trees[1] != trees[0]


def joined(one, other):
    columns = ("token", "depth", "run", "feature", "rank")
    parts = {name: np.concatenate((getattr(one, name), getattr(other, name))) for name in columns}
    meta = replace(one.meta, tasks=("a", "b"), ids=("a", "b"))
    offset = np.array([0, one.rows, one.rows + other.rows])
    budget = np.concatenate((one.budget, other.budget))
    return replace(
        one, offset=offset, budget=budget, meta=meta, sequence=np.arange(2),
        prompt_offset=np.zeros(3, np.int64), **parts,
    )  # fmt: skip

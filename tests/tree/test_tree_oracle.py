"""The tree oracle against the least time over its trees."""

import naive_tree
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_strategies import ordered, prices, recordings

from simspec.policies.trees import dynamic_tree, tree_oracle
from simspec.tree.replay import outcomes, replay_tree, tree_seconds
from simspec.tree.search import rank_acceptance, sequoia_trees
from simspec.tree.tree import MAX_NODES, TreePolicy, chain_tree


@settings(max_examples=25)
@given(recordings(optional=False, max_K=3, max_rows=6, max_sequences=2), prices(), st.booleans())
def test_tree_oracle_has_the_least_time_over_its_trees(trace, cost, dynamic):
    trees = {chain_tree(k) for k in range(1, trace.K + 1)}
    trees |= {
        tree.cut(d)
        for tree in sequoia_trees(rank_acceptance(trace), MAX_NODES)
        for d in range(1, trace.K + 1)
    }
    policies = [TreePolicy("one", "static", tree=tree) for tree in trees if len(tree)]
    if dynamic:
        trace = ordered(trace, 2, min(3, trace.K))
        policies = [dynamic_tree(n) for n in range(1, MAX_NODES + 1)] + policies
    figures = {
        tuple(tuple(columns.tolist()) for columns in outcomes(trace, policy)) for policy in policies
    }

    def options(s, row):
        return {(0, 0, 0, 0, 0), *(tuple(column[row] for column in columns) for columns in figures)}

    best = tree_oracle(trace, cost)
    rounds = replay_tree(trace, best, cost)
    seconds = tree_seconds(rounds, trace, best, cost)
    for s in range(trace.sequences):
        total = seconds[rounds.offset[s] : rounds.offset[s + 1]].sum()
        assert total == pytest.approx(naive_tree.least(trace, cost, s, options), rel=1e-12)
    for policy in policies[:9]:
        assert (
            seconds.sum()
            <= tree_seconds(replay_tree(trace, policy), trace, policy, cost).sum() + 1e-9
        )

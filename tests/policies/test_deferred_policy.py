"""Policies that need the trace and the costs: what they answer before they are made."""

import pytest

from simspec import CostModel, DeferredPolicy, policies, synthetic
from simspec.policies import parse
from simspec.tree.tree import MAX_NODES

TRACE, COST = synthetic.iid(0.6, 2, 12, 4), CostModel.from_ratio(0.1, 4, MAX_NODES)
CHAINS = (
    *("fixed:2", "beta_ts", "oracle", "greedy_oracle", "cost_ts"),
    *("goodput", "ucb", "exp3"),
)
FITTED_TREES = (
    "optimal_tree", "optimal_tree:16", "optimal_tree:8,medusa", "optimal_tree:8,full",
    "tree_oracle",
)  # fmt: skip


@pytest.mark.parametrize("text", CHAINS)
def test_chains_submit_no_tree_nodes(text):
    assert parse(text).submitted(8) == 0


@pytest.mark.parametrize("text", FITTED_TREES)
def test_fitted_trees_submit_up_to_the_largest_tree(text):
    assert parse(text).submitted(8) == MAX_NODES


@pytest.mark.parametrize("text, nodes", [("static:2x2", 8), ("dynamic_tree:40", 40), ("cape", 32)])
def test_static_trees_submit_their_nodes(text, nodes):
    assert parse(text).submitted(8) == nodes


def test_new_policy_is_one_dictionary_entry(monkeypatch):
    mine = DeferredPolicy("mine", lambda trace, cost: policies.fixed(trace.K))
    monkeypatch.setitem(policies.BUILTIN, "mine", mine)
    assert parse("mine") is mine
    with pytest.raises(policies.PolicyError, match="mine takes no arguments"):
        parse("mine:3")


def test_clairvoyant_policies_are_named():
    assert set(policies.CLAIRVOYANT) == {"oracle", "greedy_oracle", "tree_oracle"}

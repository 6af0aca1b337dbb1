"""Policies that need the trace and the costs: what they answer before they are made."""

from dataclasses import replace

import pytest

from simspec import CostModel, DeferredPolicy, Policy, TreePolicy, policies, synthetic
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


def test_renamed_factory_is_priced_as_before():
    tree = parse("optimal_tree:16")

    def maker_of_another_module(trace, cost):
        return tree.resolve(trace, cost)

    renamed = replace(tree, name="renamed", make=maker_of_another_module)
    assert renamed.submitted(8) == tree.submitted(8) == MAX_NODES


@pytest.mark.parametrize("text", [*CHAINS, "static:2x2", *FITTED_TREES, "cape", "confidence:0.5"])
def test_every_policy_has_the_same_three_methods(text):
    policy = parse(text)
    assert isinstance(policy.reads, tuple)
    assert policy.submitted(4) >= 0
    assert callable(policy.resolve)


@pytest.mark.parametrize("text", CHAINS)
def test_resolve_is_idempotent(text):
    resolved = parse(text).resolve(TRACE, COST)
    assert isinstance(resolved, Policy)
    assert resolved.resolve(TRACE, COST) is resolved


def test_tree_policies_resolve_to_themselves():
    tree = parse("static:2x2")
    assert isinstance(tree, TreePolicy)
    assert tree.resolve(TRACE, COST) is tree


def test_deferred_policy_is_named_by_its_text():
    names = [parse(text).name for text in (*FITTED_TREES, "oracle", "cost_ts:depth,alpha0=2")]
    assert names == [*FITTED_TREES, "oracle", "cost_ts:variant=depth,alpha0=2"]


def test_make_accepts_deferred_policies_texts_and_functions():
    mine = DeferredPolicy("mine", lambda trace, cost: policies.fixed(trace.K))
    for policy in (mine, "fixed:4", lambda trace, cost: policies.fixed(4)):
        assert policies.make(policy, TRACE, COST) == policies.fixed(4)


def test_new_policy_is_one_dictionary_entry(monkeypatch):
    mine = DeferredPolicy("mine", lambda trace, cost: policies.fixed(trace.K))
    monkeypatch.setitem(policies.BUILTIN, "mine", mine)
    assert parse("mine") is mine
    with pytest.raises(policies.PolicyError, match="mine takes no arguments"):
        parse("mine:3")


def test_clairvoyant_policies_are_named():
    assert set(policies.CLAIRVOYANT) == {"oracle", "greedy_oracle", "tree_oracle"}

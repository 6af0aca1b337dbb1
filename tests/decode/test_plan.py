"""Every plan has all members of the protocol that the decode loop uses."""

import inspect

import pytest
from toy_lm import toy_cost

from real.decode.plans import BeamSearch, Cape, DynamicTree, Plan, StaticTree, chain_plan, make_plan
from real.measure.blocks import undrafted_chain, undrafted_tree
from real.measure.timing import PLAIN, Job, JobPlan
from simspec import policies

PLANS = {
    "chain": lambda: chain_plan(policies.parse("fixed:2"), 4, 0, toy_cost()),
    "cape": lambda: Cape(1, 3),
    "static": lambda: make_plan(policies.parse("static:2x2"), 4, 0, toy_cost()),
    "dynamic": lambda: DynamicTree(2, 3, 4),
    "beam": lambda: BeamSearch(2, 3),
    "undrafted chain": lambda: undrafted_chain(6, 24),
    "undrafted tree": lambda: undrafted_tree(6, 24),
    "jobs": lambda: JobPlan({Job(PLAIN): undrafted_tree(6, 24)}, [[Job(PLAIN)]], 8),
}
MEMBERS = {"K", "reader", "begin", "draft", "end"}


def test_protocol_declares_what_the_loop_uses():
    assert {name for name in vars(Plan) if not name.startswith("_")} == MEMBERS


@pytest.mark.parametrize("name", PLANS)
def test_plan_has_every_member(name):
    plan = PLANS[name]()
    assert isinstance(plan.K, int)
    assert "reader" in {*dir(type(plan)), *getattr(type(plan), "__annotations__", {})}
    for method in ("begin", "draft", "end"):
        wanted = list(inspect.signature(getattr(Plan, method)).parameters)
        assert list(inspect.signature(getattr(type(plan), method)).parameters) == wanted


def test_static_policy_has_a_static_tree():
    assert isinstance(PLANS["static"](), StaticTree)

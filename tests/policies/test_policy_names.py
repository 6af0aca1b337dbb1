"""Names of policies: parsed, read back, and refused in one line."""

import re

import numpy as np
import pytest
from documents import ROOT, TABLES, printed_by, stale_tables
from strategies import EXAM
from strategies import PLANNED_COST as PRICES
from strategies import PLANNED_TRACE as TRACE

from simspec import CostModel, PolicyError, policies, synthetic
from simspec.policies import (
    BATCH_KINDS,
    BUILTIN,
    KINDS,
    beta_ts,
    cali_ts,
    confidence,
    fixed,
    hf_heuristic,
    make,
    oracle,
    parse,
)
from simspec.policy_kind import GROUPS
from simspec.reports.tuning import policy_text


@pytest.mark.parametrize(
    "policy", [p for p in EXAM if not p.name.startswith("nosy")], ids=lambda policy: policy.name
)
def test_names_parse_back_to_their_policy(policy):
    assert make(policy.name, TRACE, PRICES) == policy


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_names_of_built_policies_start_with_their_key(name):
    policy = make(policy_text(name, KINDS[name].required), TRACE, PRICES)
    again = make(policy.name, TRACE, PRICES)
    assert again == policy
    assert make(policy, TRACE, PRICES) is policy
    assert policy.name.split(":")[0] == name
    assert "\n" not in policy.name


def examples(*groups):
    return [text for kind in KINDS.values() if kind.group in groups for text in kind.examples]


def test_every_kind_has_an_example_of_its_own_name_and_a_known_group():
    for name, kind in KINDS.items():
        assert {text.split(":")[0] for text in kind.examples} == {name}
        assert kind.group in GROUPS
        assert kind.source
        assert kind.rule


@pytest.mark.parametrize("text", examples("trees"))
def test_examples_of_trees_read_back(text):
    again = parse(parse(text).name)
    assert (again.name, type(again)) == (parse(text).name, type(parse(text)))


def test_parse():
    assert parse("fixed:3") == fixed(3)
    assert parse("beta_ts") == beta_ts()
    assert parse("beta_ts:censored,alpha0=2.5") == beta_ts("censored", 2.5)
    assert (
        parse("confidence:0.4,false")
        == parse("confidence:0.4,inclusive=false")
        == confidence(0.4, False)
    )
    assert parse("hf_heuristic:start=20,transient=true") == hf_heuristic(20, True)
    assert parse("cali_ts:validated,sigma_m=0.2") == cali_ts("validated", sigma_m=0.2)
    assert parse("oracle") is oracle
    assert set(BUILTIN) >= {"fixed", "beta_ts", "confidence", "hf_heuristic", "oracle"}
    assert policies.parse is parse


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fixd:3",
        "fixed",
        "fixed:",
        "fixed:-1",
        "fixed:x",
        "fixed:2.5",
        "fixed:1,2",
        "fixed:k=1,j=2",
        "beta_ts:posterior",
        "beta_ts:alpha0=0",
        "beta_ts:alpha0=x",
        "beta_ts:scope=prompt",
        "confidence",
        "confidence:2",
        "confidence:x",
        "confidence:0.5,inclusive=3",
        "confidence:true",
        "entropy:-1",
        "product:2",
        "product:0.3,predictor=entropy",
        "product:0.3,shortest=0",
        "adaedl:g=0",
        "adaedl:g=x",
        "cali_ts:posterior",
        "cali_ts:sigma_m=0",
        "cali_ts:sigma_s=x",
        "cali_ts:theta0=1.5",
        "cali_ts:predictor=scalar/1/2",
        "cali_ts:predictor=scalar/1/2/3/x",
        "cali_ts:predictor=scalar/1/2/3/inf",
        "cali_ts:predictor=3",
        "cali_ts:predictor=absent.json",
        "cali_ts:predictor=a-b",
        "cali_ts:side=model,predictor=a b",
        "cali_ts:side=none",
        "cali_ts:side=sampling,theta0=-1",
        "optimal_tree:medusa",
        "optimal_tree:4,best",
        "cape:wide",
        "dynamic_tree:beam",
        "cost_ts:mean",
        "cost_ts:alpha0=0",
        "cost_ts:decay=0",
        "cost_ts:decay=2",
        "cost_ts:greedy=3",
        "cost_ts:scope=prompt",
        "cost_ts:K=-1",
        "cost_ts:K=x",
        "greedy_oracle:3",
        "hf_heuristic:0",
        "hf_heuristic:true",
        "hf_heuristic:2,transient=3",
        "oracle:3",
    ],
)
def test_invalid_policy_texts_are_refused_in_one_line(text):
    with pytest.raises(PolicyError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text, near",
    [
        ("fixd:3", "fixed"),
        ("beta-ts", "beta_ts"),
        ("oracel", "oracle"),
        ("confidense:0", "confidence"),
    ],
)
def test_unknown_names_get_the_nearest_suggestion(text, near):
    with pytest.raises(PolicyError, match=f"did you mean {near}\\?"):
        parse(text)
    with pytest.raises(PolicyError, match="named 'qqq': expected one of .*beta_ts, "):
        parse("qqq")


@pytest.mark.parametrize("thing", [3, None, lambda trace, cost: "fixed:3"])
def test_make_refuses_other_objects(thing):
    with pytest.raises(PolicyError, match="is no policy: expected a Policy, text"):
        make(thing, TRACE, PRICES)
    assert make(oracle, TRACE, PRICES).name == make("oracle", TRACE, PRICES).name == "oracle"


@pytest.mark.parametrize(
    "text",
    [
        *(f"ema_tiers:{bad}" for bad in (
            "3/1", "a/b", "1//3", "1/1", "256", "1.5", "true", "start=2", "start=1.0", "weight=2",
            "interval=0", "warmup=-1", "down=x", "up=999", "scope=prompt", "ceiling=-1", "lag=2",
        )),
        *(f"goodput:{bad}" for bad in (
            "clock", "weight=-1", "prior=2", "window=0", "cooldown=-1", "shortest=256", "c=-1",
            "scope=x",
        )),
        *(f"two_thresholds:{bad}" for bad in (
            "2", "high=-1", "low=0.9", "attempts=0", "start=0", "start=3,longest=2", "scope=x",
        )),
        *(f"ucb:{bad}" for bad in ("ucb2", "arms=4/3", "arms=5/6", "exploration=-1", "scope=x")),
        *(f"exp3:{bad}" for bad in ("4/3", "5", "rate=-1", "rate=x", "scope=x")),
    ],
)  # fmt: skip
def test_invalid_rules_are_refused_in_one_line(text):
    with pytest.raises(PolicyError) as caught:
        make(text, synthetic.iid(0.5, 1, 8, 4), CostModel.from_ratio(0.1, 4))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["ucb", "exp3", "goodput"])
def test_planned_rules_refuse_costs_that_they_cannot_divide_by(text):
    trace = synthetic.iid(0.5, 1, 8, 4)
    with pytest.raises(PolicyError, match="prices drafts up to 2, .* plans up to .: measure"):
        make(text, trace, CostModel.from_ratio(0.1, 2))
    with pytest.raises(PolicyError, match="a round of 0 drafted tokens is free"):
        make(text, trace, CostModel(np.arange(5.0), np.zeros(5), [0.0], 0.0, 1.0))


def named(text):
    """Policies in the first column of tables."""
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)[:`]", row.split("|")[1])}


@pytest.mark.docs
def test_tables_of_the_policies_page_have_a_row_for_every_policy():
    page = ROOT / "docs" / "policies.md"
    declared = KINDS | BATCH_KINDS
    assert {kind.group for kind in declared.values()} == {
        command.split()[2] for command in TABLES["commands"](page)
    }
    assert named(printed_by("policies", "--markdown")) == set(declared)
    assert stale_tables(page, "policies") == []

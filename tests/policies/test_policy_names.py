"""Names of policies: parsed, read back, and refused in one line."""

import re

import numpy as np
import pytest
from documents import ROOT, printed_by, stale_tables
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


def test_every_kind_has_an_example_of_its_own_name_and_a_known_group():
    for name, kind in KINDS.items():
        assert {text.split(":")[0] for text in kind.examples} == {name}
        assert kind.group in GROUPS
        assert kind.source
        assert kind.rule


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


WRONG = {
    "fixed": ("", ":", ":-1", ":x", ":2.5", ":1,2", ":k=1,j=2", ":1e400", ":" + "9" * 5000, "d:3"),
    "beta_ts": (":posterior", ":alpha0=0", ":alpha0=x", ":scope=prompt", ":more=1"),
    "confidence": ("", ":2", ":nan", ":x", ":0.5,inclusive=3", ":true", ":0.5,K=256", ":0.5,K=-1"),
    "entropy": (":-1",),
    "product": (":2", ":0.3,predictor=entropy", ":0.3,shortest=0"),
    "adaedl": (":g=0", ":g=x"),
    "cali_ts": (
        ":posterior", ":sigma_m=0", ":sigma_s=x", ":theta0=1.5", ":predictor=scalar/1/2",
        ":predictor=scalar/1/2/3/x", ":predictor=scalar/1/2/3/inf", ":predictor=3",
        ":predictor=absent.json", ":predictor=a-b", ":side=none", ":side=sampling,theta0=-1",
    ),
    "cost_ts": (":mean", ":alpha0=0", ":decay=0", ":decay=2", ":greedy=3", ":K=-1", ":K=x"),
    "hf_heuristic": (":0", ":true", ":2,transient=3"),
    "specdec_pp": (
        ":2", ":variant=late", ":shortest=0", ":longest=300", ":shortest=5,longest=4",
        ":predictor=1",
    ),
    "ema_tiers": (
        ":3/1", ":a/b", ":1//3", ":1/1", ":256", ":1.5", ":true", ":start=2", ":start=1.0",
        ":weight=2", ":interval=0", ":warmup=-1", ":down=x", ":up=999", ":scope=prompt",
        ":ceiling=-1", ":lag=2",
    ),
    "goodput": (
        ":clock", ":weight=-1", ":prior=2", ":window=0", ":cooldown=-1", ":shortest=256", ":c=-1",
        ":scope=x",
    ),
    "two_thresholds": (
        ":2", ":high=-1", ":low=0.9", ":attempts=0", ":start=0", ":start=3,longest=2", ":scope=x",
    ),
    "ucb": (":ucb2", ":arms=4/3", ":arms=5/6", ":exploration=-1", ":scope=x"),
    "exp3": (":4/3", ":5", ":rate=-1", ":rate=x", ":scope=x"),
    "optimal_tree": (":medusa", ":4,best", ":64", ":-1,medusa", ":0,full"),
    "dynamic_tree": (":beam", ":64", ":x"),
    "cape": (":wide", ":section,k=33", ":32", ":2.5"),
    "static": ("", ":4xx1", ":none"),
    **dict.fromkeys(("oracle", "greedy_oracle", "tree_oracle"), (":3",)),
}  # fmt: skip


@pytest.mark.parametrize("text", [name + rest for name, kinds in WRONG.items() for rest in kinds])
def test_invalid_policy_texts_are_refused_in_one_line(text):
    with pytest.raises(PolicyError) as caught:
        make(text, synthetic.iid(0.5, 1, 8, 4), CostModel.from_ratio(0.1, 4))
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
    assert named(printed_by("policies", "--markdown")) == set(KINDS | BATCH_KINDS)
    assert stale_tables(page, "policies") == []

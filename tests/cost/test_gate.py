"""The gate of speedups: a planted lie is refused, and what real machines measured passes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simspec.cost.gate import (
    LEAST_ROUND,
    MIN_BLOCKS,
    Claim,
    PriceError,
    check_claims,
    check_seconds,
    no_interval,
    settled,
)  # fmt: skip
from simspec.cost.model import CostModel
from simspec.cost.table import CostTable
from simspec.trace.recordings import CHECKOUT

MEASURED = sorted(CHECKOUT.rglob("*.cost.json"))


@given(st.floats(1, 20), st.floats(0.3, 4))
def test_a_round_costs_a_plain_step_or_more(tokens, spent):
    claim = Claim("fixed:3", tokens / spent, tokens)
    assert claim.possible == (tokens / spent <= tokens / LEAST_ROUND)


def test_what_a_noisy_clock_may_say():
    assert Claim("fixed:1", 1.7, 1.42, low=1.3).possible  # an interval that holds the possible
    assert not Claim("fixed:1", 1.7, 1.42, low=1.5).possible
    assert not Claim("fixed:1", 70.0, 1.42, low=0.2).possible  # which says nothing at all


LIES = [
    (Claim("fixed:2", 6.32, 3.54, low=5.8), "fixed:2 would be 6.32 times .* 3.54 tokens a round"),
    (Claim("fixed:1", 2.182, 1.42), "fixed:1 would be 2.18 times .* 1.42 tokens a round"),
]


@pytest.mark.parametrize("claim, words", LIES)
def test_a_planted_lie_is_refused_with_its_cell(claim, words):
    cost = CostModel.from_ratio(0.1, 3)
    verify = cost.verify.copy()
    verify[2] = 0.35
    with pytest.raises(PriceError, match=words + ".*round of 2 drafts at 0.55 of a plain") as said:
        check_claims([claim], replace(cost, verify=verify), "c.json")
    assert str(said.value).startswith("c.json: ")
    with pytest.raises(PriceError, match=words + ".*idle machine") as said:
        check_claims([claim])
    assert "\n" not in str(said.value)


def test_costs_that_real_machines_measured_pass():
    assert len(MEASURED) > 20
    known = set()
    for path in MEASURED:
        for cost in CostTable.from_json(path).known:
            drafted = np.arange(1, cost.K + 1)
            rounds = (cost.draft[drafted] + cost.verify[drafted]) / cost.baseline
            check_claims([Claim("all accepted", 3 / r, 3.0) for r in rounds], cost, path.name)
            if no_interval(cost):
                known.add((path.name, cost.name))
    assert known == {("vllm-batch.cost.json", "vllm 0.32.0 batch 16")}  # of three blocks


def test_intervals_need_blocks_and_spread():
    held = (cost for path in MEASURED for cost in CostTable.from_json(path).known)
    cost = next(c for c in held if c.replicates and c.precision.blocks > 4)
    held = cost.precision
    assert no_interval(cost) == ""
    few = replace(cost, precision=replace(held, blocks=MIN_BLOCKS, disturbed=1))
    assert no_interval(few).startswith("3 undisturbed timing blocks")
    alike = {part: [values[0]] * 200 for part, values in held.replicates.items()}
    flat = replace(cost, precision=replace(held, replicates=alike))
    for derived in (flat, flat.truncate(flat.K - 1), flat.reading(("confidence",))):
        assert no_interval(derived).startswith("200 replicates that are all alike")
    assert no_interval(CostModel.from_ratio(0.2, 3)) == ""  # given, not measured


def test_two_measurements_agree_or_not():
    assert settled(1.05, 1.0)
    assert settled(1.0, 1.05)
    assert not settled(1.14, 0.96)
    assert not settled(0.96, 1.14)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e8, float("nan"), float("inf")])
def test_absurd_seconds_are_refused(seconds):
    check_seconds(0.02, "a pass")
    with pytest.raises(PriceError, match=r"a pass took .* expected 1e-06 to 600"):
        check_seconds(seconds, "a pass")

"""Where a round goes: parts that add up to its price, and planted worlds whose part is found."""

from dataclasses import replace

import numpy as np
import pytest
from cost_replicates import replicated
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import costs, traces

from simspec import CostModel, policies
from simspec.cost.rounds import backlogs
from simspec.cost.table import load_cost
from simspec.cost.why import CACHED, DRAFTING, FEATURES, HOST, REMEDIES, ROWS, split_rounds
from simspec.policies.fixed import fixed
from simspec.replay.replay import replay
from simspec.trace.synthetic import iid
from simspec.trace.trace import Rounds

FOUR, TRACE = fixed(4), iid(0.7, 8, 40, 4, confidence=True)


def split(cost, trace=TRACE, policy=FOUR):
    """(the parts, the rounds) of a policy."""
    rounds = replay(trace, policy)
    tokens = trace.rows / len(rounds)
    return split_rounds(policy.name, rounds, tokens, cost, policy.reads), rounds


@settings(deadline=None, max_examples=60)
@given(traces(), costs(), st.sampled_from(["fixed:0", "fixed:1", "confidence:0.5"]), st.data())
def test_parts_add_up_to_the_price_of_the_rounds(trace, cost, policy, data):
    times = st.integers(0, 8).map(lambda n: n / 64)
    terms = {name: data.draw(times) for name in ("kv_verify", "kv_draft", "feature")}
    cost = replace(cost, **terms, predictor=data.draw(st.none() | times)).at(3)
    policy = policies.make(policy, trace, cost)
    found, rounds = split(cost, trace, policy)
    seconds = cost.reading(policy.reads).seconds(rounds)
    assert found.steps == pytest.approx(seconds.mean() / cost.baseline, rel=1e-12)
    assert found.speedup == pytest.approx(trace.rows * cost.baseline / seconds.sum(), rel=1e-12)
    assert all(found.without(part) <= found.tokens for part in REMEDIES)
    twin = by_hand(cost, rounds, policy.reads)
    assert {part: held.value for part, held in found.parts.items()} == pytest.approx(twin, abs=1e-9)


def by_hand(cost, rounds, reads):
    """The parts, round by round."""
    parts = dict.fromkeys(REMEDIES, 0.0)
    for c, d, lag in zip(rounds.computed, rounds.drafted, backlogs(rounds)):
        parts[DRAFTING] += cost.draft[c] - c * cost.kv_draft * cost.context
        parts[DRAFTING] += cost.catch_up[min(lag, len(cost.catch_up) - 1)] if c else 0.0
        parts[ROWS] += cost.verify[d] - cost.verify[0]
        parts[CACHED] += c * cost.kv_draft * cost.context
        parts[HOST] += cost.overhead + cost.verify[0] - cost.baseline
        parts[FEATURES] += c * cost.charge(reads)
    return {part: value / len(rounds) / cost.baseline for part, value in parts.items()}


ROUNDS = Rounds(*map(np.array, ([0, 2], [0, 3], [4, 4], [4, 4], [2, 0])))


def planted(part):
    """Costs of drafts of 4 in which every part takes 0.1 plain steps a round, and one 1.5."""
    of = dict.fromkeys(REMEDIES, 0.1) | {part: 1.5}
    tokens = np.arange(5)
    return CostModel(
        tokens * of[DRAFTING] / 4, np.where(tokens, 1 + of[ROWS], 1.0), [0.0], of[HOST], 1.0,
        feature=of[FEATURES] / 4, kv_draft=of[CACHED] / 4 / 1000, kv_verify=1e-12,
    ).at(1000)  # fmt: skip


@pytest.mark.parametrize("part", REMEDIES)
def test_a_planted_part_is_found_with_its_share(part):
    found = split_rounds("K = 4", ROUNDS, 2.0, planted(part), ("confidence",))
    values = {name: held.value for name, held in found.parts.items()}
    expected = pytest.approx(dict.fromkeys(REMEDIES, 0.1) | {part: 1.5})
    assert values == expected
    assert (found.largest, found.unknown) == (part, ())
    assert found.without(part) == pytest.approx(2 / 1.4)
    assert f"Its largest part is {part}: 1.50 plain steps" in found.sentence
    assert found.sentence.endswith(REMEDIES[part])
    # control: two parts swapped have the same sum, and are not as planted
    other = next(name for name in REMEDIES if name != part)
    assert values | {part: values[other], other: values[part]} != expected


def test_parts_that_costs_do_not_hold_are_unknown_and_not_zero():
    ratio, _ = split(CostModel.from_ratio(0.2, 4))
    assert ratio.unknown == (ROWS, CACHED, HOST)
    whole, _ = split(CostModel(np.zeros(5), 1 + 0.2 * np.arange(5), [0.0], 0.0, 1.0))
    assert whole.unknown == (DRAFTING, CACHED, HOST)
    assert "part is drafting with verification of rows, which these costs do not" in whole.sentence
    measured = load_cost("traces/tiny-eagle-greedy.cost.json")
    nothing = replace(measured, overhead=0.0, baseline=measured.verify[0])  # and yet measured
    for cost in (measured, nothing):
        assert split(cost.truncate(4))[0].unknown == (CACHED,)


def test_intervals_are_those_of_the_replicates():
    cost = replicated(CostModel(0.1 * np.arange(5), 1 + 0.1 * np.arange(5), [0.0], 0.05, 1.0))
    part = split(cost)[0].parts[DRAFTING]
    drawn = [split(held)[0].parts[DRAFTING].value for held in cost.replicates]
    assert (part.low, part.high) == pytest.approx(np.quantile(drawn, (0.025, 0.975)))
    assert part.value in part
    few = replace(cost, precision=replace(cost.precision, blocks=3))
    assert np.isnan(split(few)[0].parts[DRAFTING].low)

"""Lookahead decoding: its twin, losslessness, enumeration under sampling, and its refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from branches import output_distribution
from enumerated_world import EXACT, Listener, World, off, until, whole
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_lookahead import lookahead
from toy_lm import END, RULES, at_random, toy_cost, toy_pair, toy_prompts

from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.draft import Draft
from real.drafters.lookahead import LookaheadDrafter
from real.model.checkpoint import WeightsError
from real.model.target import Target
from real.prompts import Prompt
from real.record import RecordError, Settings
from real.record.recorder import record_sequence
from real.record.sequences import target_sequence
from real.sampling import Rule
from simspec import CostModel, policies

SIZES = st.fixed_dictionaries(
    {
        "window": st.integers(1, 5), "ngram": st.integers(2, 5), "pool": st.integers(1, 4),
        "follow": st.booleans(), "seed": st.integers(0, 3),
    }
)  # fmt: skip
TARGET = toy_pair("model")[0].decoder


def decoded(sizes, prompt, budget, policy="fixed:6", rule=None, ends=END, seed=0):
    policy = policies.parse(policy) if isinstance(policy, str) else policy
    plan = chain_plan(policy, 6, seed, toy_cost())
    target, drafter = Target(TARGET), LookaheadDrafter(**sizes)
    return decode(target, drafter, plan, rule or Rule(), prompt, budget, ends, seed)


@torch.inference_mode()
def best(text):
    return int(TARGET(torch.tensor([text]))[0, -1].argmax())


@settings(deadline=None, max_examples=15)
@given(SIZES, st.integers(0, 50), st.integers(1, 20), st.sampled_from([(), END]))
def test_rounds_equal_the_algorithm(sizes, seed, budget, ends):
    prompt = toy_prompts(1, seed)[0]
    tokens, accepted = lookahead(best, prompt, budget, sizes, ends, 6)
    result = decoded(sizes, prompt, budget, ends=ends)
    assert result.token.tolist() == tokens
    assert result.accepted.tolist() == accepted


def test_pool_of_several_candidates_accepts_more_than_one():
    """Control of the verification branch: candidates beside the drafted chain count."""
    one, four = (
        sum(
            decoded(dict(window=5, ngram=3, pool=pool), prompt, 40, ends=()).accepted.sum()
            for prompt in toy_prompts(8, 1)
        )
        for pool in (1, 4)
    )
    assert four > one


@settings(deadline=None, max_examples=20)
@given(SIZES, st.sampled_from(list(RULES)), st.integers(0, 99), st.floats(0, 1), st.floats(0, 1))
def test_any_policy_commits_the_targets_sequence(sizes, rule, seed, go, keep):
    prompt = toy_prompts(1, seed)[0]
    expected, _ = target_sequence(Target(TARGET), Settings(6, 20, RULES[rule], END), prompt, seed)
    result = decoded(sizes, prompt, 20, at_random(go, keep), RULES[rule], seed=seed)
    assert result.token.tolist() == expected.tolist()
    assert (result.accepted <= result.computed).all()


def test_control_accepted_window_rows_change_accepted_lengths(monkeypatch):
    """Rows of the window are guesses of other positions: accepting them is another algorithm."""
    monkeypatch.setattr(Draft, "offered", property(lambda self: replace(self, own=0)))
    sizes, other = dict(window=4, ngram=4, pool=2, follow=False, seed=0), 0
    for prompt in toy_prompts(6, 2):
        _, accepted = lookahead(best, prompt, 24, sizes, (), 6)
        other += decoded(sizes, prompt, 24, ends=()).accepted.tolist() != accepted
    assert other > 0


def test_rows_of_a_pass():
    """Row 0, the chain, other candidates merged by prefix, then N - 1 levels of the window."""
    drafter = LookaheadDrafter(window=3, ngram=3, pool=3)
    drafter.begin(None, [7], None, None)
    drafter.grams = {7: [(1, 2), (1, 3), (4, 5)]}
    drafter.levels = [[0, 11, 12], [21, 22, 23]]
    steps = [drafter.next() for _ in range(3)]
    assert [step and step.token for step in steps] == [4, 5, None]
    draft = drafter.complete(Draft([7, 4, 5], [-1, 0, 1], 2, 2))
    assert draft.token == [7, 4, 5, 1, 3, 2, 11, 12, 21, 22, 23]
    assert draft.parent == [-1, 0, 1, 0, 3, 3, 0, 6, 0, 6, 7]
    assert draft.own == 5
    assert draft.offered.token == [7, 4, 5, 1, 3, 2]
    assert drafter.end == [8, 9, 10]
    shallow = drafter.complete(Draft([7, 4], [-1, 0], 1, 1)).offered
    assert shallow.token == [7, 4, 1]
    assert drafter.complete(Draft([7], [-1], 0, 0)).offered.token == [7]


def spoken(world, rule, sizes, budget, draws, ends):
    target = Listener(world)
    plan = chain_plan(policies.parse("fixed:2"), 2, 0, CostModel.from_ratio(0.2, 2))
    drafter = LookaheadDrafter(**sizes)
    return decode(target, drafter, plan, rule, [0], budget, ends, 0, target.extend, draws)


@pytest.mark.parametrize(
    "sizes, budget",
    [
        (dict(window=2, ngram=2, pool=2), 4),
        (dict(window=3, ngram=3, pool=2), 4),
        (dict(window=2, ngram=3, pool=3, follow=True), 5),
    ],
)
@pytest.mark.parametrize("ends", [(), (1,)])
def test_sampled_distribution_is_the_targets(sizes, budget, ends):
    """Every outcome of the draws, under the rejection rule: the target's law to 1e-12."""
    for seed in range(3):
        world, rule, drafted = World(seed, 3), Rule("rejection", 1.2), []

        def one(draws):
            result = spoken(world, rule, sizes, budget, draws, ends)  # noqa: B023
            drafted.append(int(result.accepted.sum()))  # noqa: B023
            return until(tuple(result.token.tolist()), ends)

        assert off(output_distribution(one), whole(world, rule, budget, ends)) < EXACT
        assert max(drafted) > 0


def test_control_sampled_guesses_would_be_biased(monkeypatch):
    """A drafted token accepted as if q were the target's own p is caught by the enumeration."""
    world, rule, sizes = World(0, 3), Rule("rejection"), dict(window=2, ngram=2, pool=2)
    honest = LookaheadDrafter.complete

    def lying(self, draft):
        full = honest(self, draft)
        sure = torch.full((3,), 1 / 3, dtype=torch.float64)
        return replace(full, q=dict.fromkeys(range(len(full.token)), sure))

    monkeypatch.setattr(LookaheadDrafter, "complete", lying)

    def one(draws):
        return tuple(spoken(world, rule, sizes, 4, draws, ()).token.tolist())

    assert off(output_distribution(one), whole(world, rule, 4, ())) > 1e-3


def test_recorder_refuses_it():
    target, drafter = Target(TARGET), LookaheadDrafter(3, 3, 3)
    prompt = Prompt("0", "toy", "random", toy_prompts(1)[0])
    for rule in (Rule(), Rule("rejection")):
        with pytest.raises(RecordError, match="'lookahead' depends on earlier rounds") as refused:
            record_sequence(target, drafter, Settings(4, 12, rule, END, ()), prompt.token, 0)
        assert "\n" not in str(refused.value)


WRONG = [
    ({"window": 0}, "window is 0"), ({"ngram": 1}, "ngram is 1"), ({"pool": 2.0}, "pool is 2.0"),
    ({"follow": 1}, "follow is 1"), ({"seed": -1}, "seed is -1"),
    ({"window": 4096}, "at most 2048"),
]  # fmt: skip


@pytest.mark.parametrize("wrong, message", WRONG)
def test_sizes_out_of_range_are_refused(wrong, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        LookaheadDrafter(**wrong)
    (tmp_path / "lookahead.json").write_text(json.dumps({"settings": wrong}))
    with pytest.raises(WeightsError, match="holds no settings of lookahead") as refused:
        LookaheadDrafter.load(tmp_path, TARGET, {})
    assert "\n" not in str(refused.value)


def test_window_runs_on_captured_passes_too():
    """A pass wider than the captured ones runs eagerly: the same tokens."""
    from real.decode.engine import make_passes

    prompt = toy_prompts(1, 5)[0]
    plan = chain_plan(policies.parse("fixed:4"), 4, 0, toy_cost())
    target = Target(TARGET, passes=make_passes("fast", 5, 64))
    fast = decode(target, LookaheadDrafter(3, 4, 3), plan, Rule(), prompt, 16, ())
    slow = decoded(dict(window=3, ngram=4, pool=3), prompt, 16, "fixed:4", ends=())
    assert fast.token.tolist() == slow.token.tolist()
    np.testing.assert_array_equal(fast.accepted, slow.accepted)

"""Forced decoding under the rejection rule: the replay's rounds one by one, and planted faults."""

from dataclasses import replace

import pytest
import torch
from branches import output_distribution
from enumerated_world import EXACT, Listener, Speaker, World, off, spoken, whole
from test_run_sampled import COST, Heated, recording
from toy_lm import toy_decoder

from real.audit.forced_decoding import compare_forced_sampled, decode_forced_sampled
from real.decode.loop import decode
from real.decode.plans import chain_plan, make_plan
from real.model.target import Target
from real.sampling import Rule
from simspec import policies, replay

SEED = 7


def some(drafter):
    """Ten sequences of the recording, and its pair."""
    trace, pair = recording(drafter)
    return trace.select(range(0, 40, 4)), pair


def forced(trace, pair, text, seed=SEED, replayed=SEED):
    """The comparison of forced runs with draws of `seed` with the replay of `replayed`."""
    policy = policies.parse(text).resolve(trace, COST)
    plan = chain_plan(policy, trace.K, SEED, COST)
    results, tested = decode_forced_sampled(pair.target, pair.drafter, plan, trace, seed)
    rounds = replay(trace, policy, seed=replayed, cost=COST)
    return compare_forced_sampled(trace, rounds, results, tested, "float64", replayed)


@pytest.mark.parametrize("drafter", ["model", "eagle", "prompt_lookup"])
@pytest.mark.parametrize("policy", ["fixed:0", "fixed:3", "beta_ts:scope=stream"])
def test_forced_rounds_are_the_replays_one_by_one(drafter, policy):
    result = forced(*some(drafter), policy)
    assert result.rounds == result.equal == result.replayed > 0
    assert result.differing == 0
    assert result.largest_gap < 1e-6
    assert (result.tested > 20) == (policy != "fixed:0")
    assert result.sound


def test_real_rounds_follow_from_forced_ones_exactly():
    """Sequences and rounds jointly: forced rounds, weighted by the target's probability of the
    sequence, are distributed as real ones; every draw on either side enumerated."""
    policy, budget, ends = policies.parse("fixed:2"), 4, (2,)
    for seed, rule in ((4, Rule("rejection")), (2, Rule("rejection", 0.8, 0, 0, 0.95))):
        world = World(seed, 3, 0.4)

        def real(draws, world=world, rule=rule):
            r = spoken(world, rule, policy, budget, 2, draws, 0, ends)
            return tuple(r.token.tolist()), tuple(r.accepted.tolist())

        total = {}
        for text, odds in whole(world, rule, budget, ends).items():
            if not odds:
                continue

            def one(draws, text=text, world=world, rule=rule):
                target, plan = Listener(world), chain_plan(policy, 2, 0, COST)
                models = target, Speaker(world), plan, rule
                heard = target.extend
                r = decode(*models, [0], budget, ends, 0, heard, draws, forced=list(text))
                return tuple(r.token.tolist()), tuple(r.accepted.tolist())

            for key, share in output_distribution(one).items():
                total[key] = total.get(key, 0.0) + odds * share
        assert off(output_distribution(real), total) < EXACT
        assert len({accepted for _, accepted in total}) > 5


def test_control_other_draws_make_other_rounds():
    trace, pair = some("model")
    result = forced(trace, pair, "fixed:3", seed=SEED + 1)
    assert result.equal < result.rounds
    assert not result.sound
    assert result.differing == 0


def test_control_another_target_is_reported():
    trace, pair = some("model")
    other = replace(pair, target=Target(toy_decoder(5), (), capacity=32))
    result = forced(trace, other, "fixed:3")
    assert not result.sound
    assert result.differing > 0.5 * result.tested
    assert result.tokens == trace.rows


def test_control_a_drafter_of_another_temperature_is_reported():
    trace, pair = some("model")
    result = forced(trace, replace(pair, drafter=Heated(pair.drafter.lm)), "fixed:3")
    assert not result.sound
    assert "differ by" in result.describe()
    assert result.summary()["differing"] == result.differing > 0


def test_trees_are_refused():
    trace, pair = some("model")
    plan = make_plan(policies.parse("static:2x1"), trace.K, 0, COST)
    with pytest.raises(ValueError, match="cannot be forced on a tree"):
        decode_forced_sampled(pair.target, pair.drafter, plan, trace)


def test_impossible_tokens_have_a_chance():
    """A token that rounding cuts on either side still has a probability of acceptance."""
    trace, pair = some("model")
    cut = replace(trace, meta=replace(trace.meta, top_k=1, top_p=1.0))
    result = forced(cut, pair, "fixed:3")
    assert torch.isfinite(torch.tensor(result.largest_gap))
    assert result.tested > 0

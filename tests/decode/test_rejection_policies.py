"""Whole sequences under the rejection rule follow the target's distribution under every policy."""

import os
from dataclasses import replace
from itertools import product

import pytest
import torch
from branches import output_distribution
from enumerated_world import (
    ALLOWED,
    BUDGET,
    CASES,
    EXACT,
    World,
    case_world,
    off,
    real_rounds,
    spoken,
    whole,
)
from toy_lm import at_random, toy_decoder

from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.drafters.model import ModelDrafter
from real.model.target import Target
from real.sampling import AddressedDraws, Rule
from simspec import CostModel, Policy, PolicyError
from simspec.policies import BUILTIN, CLAIRVOYANT, parse

SLOW = os.environ.get("SIMSPEC_SLOW")  # every policy in every case, else in one, in turn


def test_every_builtin_policy_is_tested():
    assert {text.split(":")[0] for text in ALLOWED} == set(BUILTIN) - set(CLAIRVOYANT)


@pytest.mark.parametrize("text", ALLOWED)
def test_sequences_follow_the_target_under_every_policy(text):
    """Adaptive and random policies too: the distribution holds for all draws of the policy."""
    turn = list(ALLOWED).index(text) % len(CASES)
    for case in CASES if SLOW else CASES[turn : turn + 1]:
        _, rule, ends = case
        real, ways = real_rounds(text, case)
        distribution: dict = {}
        for (sequence, _), odds in real.items():
            distribution[sequence] = distribution.get(sequence, 0.0) + odds
        assert off(distribution, whole(case_world(case), rule, BUDGET, ends)) < EXACT
        rounds = {len(rounds) for _, rounds in real}
        assert text == "fixed:0" or (ways > 40 and len(rounds) > 1)


@pytest.mark.parametrize("seed", range(3))
def test_dropping_without_looking_keeps_the_distribution(seed):
    """It drops tokens, by its own draws: which token was drawn plays no part."""
    world, rule = World(seed, 3, 0.4), Rule("rejection", 0.9, 0, 0, 0.9)
    distribution = output_distribution(
        lambda draws: tuple(
            spoken(world, rule, at_random(0.7, 0.4), 3, 2, draws, seed).token.tolist()
        )
    )
    assert off(distribution, world.true(rule, 3)) < EXACT


def _drops_the_unlikely(params, state, slot, features, u):
    return slot < 2 and (slot == 0 or features[slot - 1, 0] >= params[0]), slot == 0 or features[
        slot - 1, 0
    ] >= params[0]


def _stops_at_the_unlikely(params, state, slot, features, u):
    return slot < 2 and (slot == 0 or features[slot - 1, 0] >= params[0]), True


def _ignore(params, state, computed, drafted, accepted, features, cost):
    pass


ANTICIPATING = Policy("drops", _drops_the_unlikely, _ignore, (0.4,), reads=("probability",))


def test_anticipating_policies_change_the_distribution_and_are_refused(monkeypatch):
    world, rule = World(3, 3, 0.2), Rule("rejection")
    with pytest.raises(PolicyError, match="drops a drawn token by which token it is"):
        output_distribution(
            lambda draws: tuple(spoken(world, rule, ANTICIPATING, 3, 2, draws, 0).token.tolist())
        )
    with pytest.raises(PolicyError, match="drops a drawn token by which token it is"):
        spoken(world, rule, replace(ANTICIPATING, anticipates=True), 3, 2, AddressedDraws(0, 0), 0)
    monkeypatch.setattr("simspec.policy.stepper.Stepper._refuse", lambda self: None)
    distribution = output_distribution(
        lambda draws: tuple(spoken(world, rule, ANTICIPATING, 3, 2, draws, 0).token.tolist())
    )
    assert off(distribution, world.true(rule, 3)) > 1e-2  # why it is refused


def test_stopping_after_the_seen_token_keeps_the_distribution():
    """HuggingFace's confidence threshold reads q of the drawn token and submits it: nothing is
    dropped."""
    policy = Policy("stops", _stops_at_the_unlikely, _ignore, (0.4,), reads=("probability",))
    world, rule = World(3, 3, 0.2), Rule("rejection")
    assert (
        off(
            output_distribution(
                lambda draws: tuple(spoken(world, rule, policy, 3, 2, draws, 0).token.tolist())
            ),
            world.true(rule, 3),
        )
        < EXACT
    )


def test_real_decoders_with_caches_follow_the_target():
    """The same through a decoder and a drafter with a cache each, end tokens included."""
    decoder, small = (toy_decoder(seed, layers=2, vocab=3, spread=0.6) for seed in (0, 1))
    rule, ends = Rule("rejection", 1.3, 0, 0, 0.9), (2,)

    def one(draws):
        drive = chain_plan(parse("fixed:2"), 2, 0, CostModel.from_ratio(0.2, 2))
        return tuple(
            decode(
                Target(decoder, (), 16), ModelDrafter(small), drive, rule, [0, 1], 3, ends, 0,
                draws=draws
            ).token.tolist()
        )  # fmt: skip

    true = {}
    for text in product(range(3), repeat=3):
        odds = 1.0
        for i, token in enumerate(text):
            odds *= float(rule.probs(decoder(torch.tensor([[0, 1, *text[:i]]]))[0, -1:])[0, token])
        cut = next((i + 1 for i, token in enumerate(text) if token in ends), 3)
        true[text[:cut]] = true.get(text[:cut], 0.0) + odds
    assert off(output_distribution(one), true) < EXACT

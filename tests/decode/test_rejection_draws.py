"""Draws of the rejection rule are addressed, and policies run under it."""

import os
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from branches import output_distribution
from enumerated_world import (
    ALLOWED,
    BUDGET,
    CASES,
    EXACT,
    HELD,
    World,
    case_world,
    off,
    real_rounds,
    round_distribution,
    spoken,
    whole,
)
from hypothesis import given
from hypothesis import strategies as st
from toy_lm import at_random, learn_nothing, toy_decoder

from real.decode import verify
from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.decode.verify import rejection_sample
from real.drafters.model import ModelDrafter
from real.model.passes import chain
from real.model.target import Target
from real.sampling import AddressedDraws, Rule, inverse_cdf
from simspec import CostModel, Policy, PolicyError
from simspec.numerics.rng import ACCEPT, DRAFT, RESIDUAL, uniform
from simspec.policies import BUILTIN, CLAIRVOYANT, parse


@HELD
@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0, 3.0]), min_size=1, max_size=7).filter(any),
    st.integers(0, 2**64 - 1), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9),
    st.floats(0, 1),
)  # fmt: skip
def test_sample_is_the_quantile_of_its_addressed_uniform(
    weights, seed, sequence, round, slot, odds
):
    draws, p = AddressedDraws(seed, sequence), torch.tensor(weights, dtype=torch.float64)
    for role in (DRAFT, RESIDUAL):
        u, below = uniform(seed, sequence, round, slot, role) * sum(weights), np.cumsum(weights)
        token = draws.sample(p, round, slot, role)
        assert weights[token] > 0
        assert token == 0 or below[token - 1] <= u + 1e-12
        assert u <= below[token] + 1e-12
    assert draws.accept(odds, round, slot) == (uniform(seed, sequence, round, slot, ACCEPT) < odds)
    assert draws.accept(1.0, round, slot)
    assert not draws.accept(0.0, round, slot)


def test_samples_at_the_edge_are_possible_tokens():
    p = torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0], dtype=torch.float64)
    u = torch.tensor([0.0, 0.2999999, 0.3000001, 1 - 2.0**-33, 1.0], dtype=torch.float64)
    assert inverse_cdf(p.expand(5, -1), u).tolist() == [1, 1, 3, 3, 3]


class Astray:
    """Makes draws at other addresses than requested."""

    def __init__(self, inner, flip=lambda *address: address, draw=lambda *address: address):
        self.inner, self.at = inner, (flip, draw)

    def accept(self, odds, round, slot):
        return self.inner.accept(odds, *self.at[0](round, slot))

    def sample(self, p, round, slot, role):
        return self.inner.sample(p, *self.at[1](round, slot, role))


ASTRAY = {
    "one accept draw a round": dict(flip=lambda round, slot: (round, 0)),
    "the same accept draws in all rounds": dict(flip=lambda round, slot: (0, slot)),
    "the same drafts in all rounds": dict(draw=lambda round, slot, role: (0, slot, role)),
    "the draft's draw for the correction": dict(
        draw=lambda round, slot, role: (round, slot, DRAFT)
    ),
    "the accept draw for the correction": dict(
        draw=lambda round, slot, role: (round, slot + 1, ACCEPT if role == RESIDUAL else role)
    ),
}


@pytest.mark.parametrize("name", ["", *ASTRAY])
def test_every_draw_is_used_once_and_reuse_is_detected(name):
    rule, policy, K = Rule("rejection"), parse("fixed:2"), 2
    seen, distribution, worst = [], {}, 0.0
    for seed in range(4 if name else 2):
        world, distribution = World(seed, 3, 0.2), {}

        def run(inner):
            seen.append(inner)
            draws = Astray(inner, **ASTRAY[name]) if name else inner
            return tuple(spoken(world, rule, policy, 4, K, draws, 0).token.tolist())  # noqa: B023

        distribution = output_distribution(run)
        worst = max(worst, off(distribution, world.true(rule, 4)))
        if name and worst > 1e-3:
            break  # one world shows the fault
    twice = sum(branches.again for branches in seen)
    assert (twice > 0 and worst > 1e-3) if name else (twice == 0 and worst < EXACT), worst


def faulty(  # the signature of rejection_sample, and one flag a fault
    rule,
    logits,
    draft,
    draws,
    round, end_tokens, bonus_from_q=False, clipped=True, updated=True, raw=False, one_draw=False,
):  # fmt: skip
    """`rejection_sample` written anew, with a fault of choice."""
    p = rule.probs(logits)
    committed, row = [], 0
    kept = None
    while True:
        left, q, chosen = p[row], draft.q.get(row), None
        for child in [i for i, above in enumerate(draft.parent) if above == row]:
            token = draft.token[child]
            tested = q if not raw else Rule("rejection").probs(q.log()[None] * rule.temperature)[0]
            odds = min(1.0, float(left[token] / tested[token]))
            rest = left - q
            rest = rest.clamp(min=0) if clipped else rest.abs()
            if one_draw:  # the first accept draw decides all later ones of the same row
                kept = draws.accept(odds, round, child) if kept is None else kept
                held = kept
            else:
                held = draws.accept(odds, round, child)
            if held:
                chosen = child
                break
            if updated:
                left = rest / rest.sum() if float(rest.sum()) > 0 else left
            q = q.clone()
            q[token] = 0
            q = q / q.sum()
        if chosen is None:
            last = draft.q.get(row)
            left = last if bonus_from_q and last is not None else left
            committed.append(draws.sample(left, round, row, 3))
            return verify.VerifyResult(committed, [0], len(committed) - 1, p)
        committed.append(draft.token[chosen])
        row = chosen


FAULTS = {
    "residual not clipped": dict(clipped=False),
    "siblings without the updated residual": dict(updated=False),
    "raw q in place of processed q": dict(raw=True),
    "a reused accept draw": dict(one_draw=True),
    "correction drawn from q": dict(bonus_from_q=True),
}


def planted(fault):
    return lambda *arguments: faulty(*arguments, **fault)


@pytest.mark.parametrize("name", FAULTS)
def test_control_planted_faults_change_the_distribution(name):
    rule = Rule("rejection", 0.7)

    def worst(fault):
        worlds = [World(seed, 3, 0.3) for seed in range(4)]
        return max(
            off(round_distribution(world, rule, [-1, 0, 0, 1], 2, accept_exact=planted(fault)),
                world.true(rule, 2))
            for world in worlds
        )  # fmt: skip

    assert worst(FAULTS[name]) > 1e-2
    assert worst({}) < EXACT  # the rewritten walk is right where no fault is planted


def test_control_bonus_token_from_q_changes_the_distribution():
    """The classic fault: after a full acceptance the next token is drawn from q in place of p."""
    world, rule = World(5, 3, 0.3), Rule("rejection")

    def wrong_bonus(rule, logits, draft, draws, round, end_tokens):
        texts = (), (draft.token[1],)
        verified = rejection_sample(rule, logits, draft, draws, round, end_tokens)
        if verified.accepted < 1:
            return verified
        bonus = draws.sample(rule.probs(world.q(texts[1])[None])[0], round, 9, 3)
        return replace(verified, token=[draft.token[1], bonus])

    found = round_distribution(world, rule, chain(2), 2, accept_exact=wrong_bonus)
    assert off(found, world.true(rule, 2)) > 1e-2


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
    distribution = texts_of(world, rule, at_random(0.7, 0.4), 3, seed)
    assert off(distribution, world.true(rule, 3)) < EXACT


def _drops_the_unlikely(params, state, slot, features, u):
    likely = slot == 0 or features[slot - 1, 0] >= params[0]
    return slot < 2 and likely, likely


def _stops_at_the_unlikely(params, state, slot, features, u):
    return slot < 2 and (slot == 0 or features[slot - 1, 0] >= params[0]), True


ANTICIPATING = Policy("drops", _drops_the_unlikely, learn_nothing, (0.4,), reads=("probability",))


def texts_of(world, rule, policy, length, seed=0):
    """The distribution of the texts that a policy writes."""
    return output_distribution(
        lambda draws: tuple(spoken(world, rule, policy, length, 2, draws, seed).token.tolist())
    )


def test_anticipating_policies_change_the_distribution_and_are_refused(monkeypatch):
    world, rule = World(3, 3, 0.2), Rule("rejection")
    with pytest.raises(PolicyError, match="drops a drawn token by which token it is"):
        texts_of(world, rule, ANTICIPATING, 3)
    with pytest.raises(PolicyError, match="drops a drawn token by which token it is"):
        spoken(world, rule, replace(ANTICIPATING, anticipates=True), 3, 2, AddressedDraws(0, 0), 0)
    monkeypatch.setattr("simspec.policy.policy.Stepper._refuse", lambda self: None)
    distribution = texts_of(world, rule, ANTICIPATING, 3)
    assert off(distribution, world.true(rule, 3)) > 1e-2  # why it is refused


def test_stopping_after_the_seen_token_keeps_the_distribution():
    """HuggingFace's confidence threshold reads q of the drawn token and submits it: nothing is
    dropped."""
    policy = Policy("stops", _stops_at_the_unlikely, learn_nothing, (0.4,), reads=("probability",))
    world, rule = World(3, 3, 0.2), Rule("rejection")
    assert off(texts_of(world, rule, policy, 3), world.true(rule, 3)) < EXACT


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

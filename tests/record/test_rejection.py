"""Rejection sampling of one round: committed tokens follow the target's distribution exactly, by
enumeration."""

import pytest
import torch
from branches import outcomes
from enumerated_world import (
    EXACT,
    HELD,
    World,
    busy,
    off,
    round_distribution,
    rules,
    seeds,
    tree,
    whole,
)
from hypothesis import given
from hypothesis import strategies as st

from real.model.passes import chain
from real.sampling import Rule


def test_speculative_sampling_on_a_chain_follows_the_target():
    verified = []

    @HELD
    @given(seeds, rules, st.sampled_from([(5, 2), (4, 2), (3, 3), (3, 2), (2, 3), (4, 3), (5, 1)]))
    def held(seed, rule, size):
        (_, K), world = size, World(seed, size[0])
        assert (
            off(
                round_distribution(world, rule, chain(K + 1), K + 1, verified=verified),
                world.true(rule, K + 1),
            )
            < EXACT
        )

    held()
    assert busy(verified, 20)


@pytest.mark.parametrize("end", [(), (0,)])
def test_trees_of_up_to_seven_nodes_partly_drawn_follow_the_target(end):
    """Recursive rejection; some nodes' children nobody drew; an end token stops the round."""
    verified = []

    @HELD
    @given(seeds, rules, st.sampled_from([7, 7, 6, 6, 5, 4, 2]), st.sampled_from([4, 3, 4, 3, 2]))
    def held(seed, rule, nodes, vocab):
        world, (parent, sure) = World(seed, vocab, 0.4), tree(seed, vocab, nodes, 100)
        assert (
            off(
                round_distribution(world, rule, parent, 3, sure, ends=end, verified=verified),
                whole(world, rule, 3, end),
            )
            < EXACT
        )

    held()
    assert busy(verified, 30)


@pytest.mark.parametrize("parent", [[-1, 0, 0, 1, 1, 2, 3, 5], [-1, 0, 0, 0, 1, 1, 4, 4]])
def test_trees_of_seven_nodes(parent):
    world, rule = (
        World(11, 2 if parent.count(0) == 2 else 3, 0.3),
        Rule("rejection", 0.8, 0, 0, 0.95),
    )
    assert off(round_distribution(world, rule, parent, 4), world.true(rule, 4)) < EXACT


def test_undrawn_children_are_verified_as_certain():
    """Best tokens first, as a drafter without logits or a deterministic tree submits them: no q,
    and the distribution is still the target's."""
    verified = []

    @HELD
    @given(seeds, rules, st.sampled_from([6, 4, 2, 7]), st.sampled_from([4, 3, 5]))
    def held(seed, rule, nodes, vocab):
        world, (parent, _) = World(seed, vocab), tree(seed, vocab, nodes)
        assert (
            off(
                round_distribution(world, rule, parent, 3, sure=range(8), verified=verified),
                world.true(rule, 3),
            )
            < EXACT
        )

    held()
    assert busy(verified, 6)


@pytest.mark.parametrize("rule", [Rule("rejection", 1.0, 0, 1), Rule("rejection", 0.3, 0, 0, 0.05)])
def test_truncation_to_one_token_is_deterministic(rule):
    world = World(2, 4)
    distribution = round_distribution(world, rule, [-1, 0, 0, 1, 1], 3)
    assert off(distribution, world.true(rule, 3)) < EXACT
    assert max(distribution.values()) == 1


def test_every_outcome_is_enumerated_once():
    walked = list(
        outcomes(
            lambda c: (
                c.sample(torch.tensor([0.5, 0.0, 0.5]), 0, 0, 0),
                c.accept(0.25, 0, 0),
                c.accept(1.0, 0, 0),
            )
        )
    )
    assert sorted(walked) == [
        ((0, False, True), 0.375),
        ((0, True, True), 0.125),
        ((2, False, True), 0.375),
        ((2, True, True), 0.125),
    ]

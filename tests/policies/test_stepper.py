"""What a policy hears in replay and engine: costs with its features, and only this round's."""

import numpy as np
import pytest

from simspec import CostModel, Policy, PolicyError, Stepper, replay, synthetic
from simspec.numerics.rng import POLICY, uniform

COST = CostModel([0, 1, 2, 3], [4, 5, 6, 7], [0, 0.5], 0.25, 4, feature=0.125)
HEARD = 64


def _two(params, state, slot, features, u):
    return slot < 2, True


def _note(params, state, computed, drafted, accepted, features, cost):
    n = int(state[0])
    state[1 + n] = cost
    state[0] = n + 1.0


def listening(reads):
    """A policy of two tokens that keeps the costs that it observes."""
    return Policy(
        f"listens:{reads}", _two, _note, state0=(0.0,) * HEARD, reads=reads, scope="stream"
    )


def _replayed(params, state, slot, features, u):
    # one token behind a round that took longer than params[0], else two
    return slot < state[0], True


def _keep(params, state, computed, drafted, accepted, features, cost):
    state[0] = 1.0 if cost > params[0] else 2.0


def test_replay_observes_seconds_with_its_features():
    """A round of two costs 8.5, of which reading the features of both tokens is 0.25."""
    trace = synthetic.iid(0.0, 1, 6, 3, confidence=True)
    policy = Policy("hears", _replayed, _keep, (8.375,), (2.0,), reads=("confidence",))
    assert replay(trace, policy, cost=COST).computed.tolist()[:3] == [2, 1, 2]


@pytest.mark.parametrize("reads", [(), ("confidence",)])
def test_engine_observes_seconds_with_its_features(reads):
    stepper = Stepper(listening(reads), 3, 0, COST, (("confidence", "confidence"),))
    stepper.begin(0)
    stepper.end(2, 2, 0)
    stepper.end(2, 2, 2)
    stepper.end(1, 1, 0)
    heard = stepper._state[1:4].tolist()
    read = 0.125 if reads else 0.0
    assert heard == [8.25 + 2 * read, 8.25 + 2 * read, 6.25 + 0.5 + read]


def _looks(params, state, slot, features, u):
    state[0] = features[0, 0]
    return slot < 1, True


def _nothing(params, state, computed, drafted, accepted, features, cost):
    pass


def test_features_of_the_last_round_are_gone():
    policy = Policy("looks", _looks, _nothing, state0=(0.0,), reads=("confidence",))
    stepper = Stepper(policy, 3, 0, COST, (("confidence", "confidence"),))
    stepper.begin(0)
    stepper.ask(0)
    stepper.see(0, [200])
    stepper.ask(1)
    assert stepper._state[0] > 0
    stepper.end(1, 1, 0)
    stepper.ask(0)
    assert np.isnan(stepper._state[0])


def _drops(params, state, slot, features, u):
    return slot < params[0], False


@pytest.mark.parametrize("length, refused", [(0, False), (1, True)])
def test_drawn_tokens_are_not_dropped_by_what_they_are(length, refused):
    """Plain decoding drops nothing, so a policy that stops at slot 0 is served."""
    policy = Policy("drops", _drops, _nothing, (length,), reads=("probability",))
    stepper = Stepper(policy, 3, 0, COST, (("probability", "confidence"),))
    stepper.unforeseeing(True)
    stepper.begin(0)
    for slot in range(length):
        assert stepper.ask(slot) == (True, True)
        stepper.see(slot, [100])
    if refused:
        with pytest.raises(PolicyError, match="drops a drawn token by which token it is"):
            stepper.ask(length)
    else:
        assert stepper.ask(length) == (False, False)


def _draws(params, state, slot, features, u):
    return u < 0.8, True


def test_replayed_draws_have_the_address_of_round_and_slot():
    """Ten slots: more than one block of draws; rounds count within their sequence."""
    trace = synthetic.iid(1.0, 3, 40, 10, seed=1)
    rounds = replay(trace, Policy("draws", _draws, _nothing, random=True, scope="stream"), seed=7)
    for s in range(3):
        for r in range(rounds.offset[s], rounds.offset[s + 1]):
            drawn = [uniform(7, s, r - rounds.offset[s], slot, POLICY) < 0.8 for slot in range(10)]
            left = trace.offset[s + 1] - rounds.row[r] - 1
            expected = next((i for i, go in enumerate(drawn) if not go), 10)
            assert rounds.computed[r] == min(expected, left)

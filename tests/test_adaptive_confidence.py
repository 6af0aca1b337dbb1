"""Stopping by confidence: the fitted threshold of transformers, and tail pruning."""

import math
from functools import partial

import field_rules as twins
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_exam import LONG, SCOPE, THRESHOLD, learn, same
from strategies import costs

from simspec import replay, synthetic
from simspec.policies import adaptive_confidence, confidence, product
from simspec.trace.quantization import TABLES


@settings(max_examples=60)
@given(LONG, THRESHOLD, st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.integers(0, 6), SCOPE, costs())
def test_adaptive_confidence_equals_its_twin(trace, threshold, weight, samples, scope, cost):
    policy = adaptive_confidence(threshold, weight, samples, scope)
    twin = partial(twins.AdaptiveConfidence, threshold, weight, samples)
    same(trace, policy, twin, cost, features=("confidence",))


def test_adaptive_confidence_by_hand():
    """Accepted 0.9 0.6 0.5, rejected 0.7 0.4. FPR + 3 FNR at 0.9: 0 + 3 * 2/3; at 0.7: 1/2 + 2; at
    0.6: 1/2 + 1; at 0.5: 1/2 + 0; at 0.4: 1 + 0. Five samples are too few, a sixth of 0.5 fits.
    """
    policy = adaptive_confidence()
    state = learn(policy, policy.state0, 2, 3, (0.9, 0.6, 0.7))
    state = learn(policy, state, 1, 2, (0.5, 0.4))
    assert state[0] == 0.4
    state = learn(policy, state, 1, 1, (0.5,))
    assert state[0] == 0.5
    assert state[1] == 5
    assert learn(policy, state, 0, 0)[0] == 0.5


def test_adaptive_confidence_keeps_the_larger_of_equal_thresholds():
    """Rejected 0.8, accepted 0.9 and 0.7, weight 2: 0.9 loses 2 * 1/2, 0.7 loses 1."""
    policy = adaptive_confidence(weight=2.0, samples=0)
    state = learn(policy, policy.state0, 1, 2, (0.9, 0.8))
    assert learn(policy, state, 1, 1, (0.7,))[0] == 0.9


def test_adaptive_confidence_counts_every_code_of_a_grid():
    policy = adaptive_confidence(samples=0)
    state = np.array(policy.state0)
    for value in np.random.default_rng(1).permutation(TABLES["confidence"]):
        state = learn(policy, state, 1, 1, (value,))
        state = learn(policy, state, 0, 1, (value,))
    assert (state[4:260] == TABLES["confidence"]).all()
    assert (state[260:] == 1).all()


def test_adaptive_confidence_is_the_fixed_one_until_it_has_samples():
    trace = synthetic.iid(0.7, 4, 40, 6, confidence=True)
    never = adaptive_confidence(0.6, samples=1000)
    assert replay(trace, never) == replay(trace, confidence(0.6))
    assert replay(trace, adaptive_confidence(0.6)) != replay(trace, confidence(0.6))


@settings(max_examples=40)
@given(LONG, st.sampled_from([0.05, 0.1, 0.2]), st.booleans(), costs())
def test_tail_pruning_is_product(trace, tail, inclusive, cost):
    """Stop once the product of max q along the draft is under `tail`: product with 1 - tail."""

    class Tail:
        def begin(self, u):
            pass

        def more(self, shown):
            return not shown or 1.0 - math.prod(q for (q,) in shown) <= 1.0 - tail

        def learn(self, shown, accepted, seconds):
            pass

    same(trace, product(1.0 - tail, shortest=1), Tail, cost, features=("confidence",))
    dropping = replay(trace, product(1.0 - tail, shortest=1, inclusive=False), 0, cost)
    assert (dropping.computed - dropping.drafted).max() <= 1

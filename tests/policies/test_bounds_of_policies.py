"""Indices of users' policies beyond their arrays: one clear error before any compiled replay."""

import subprocess
import sys

import numba
import pytest

from simspec import CostModel, Policy, PolicyError, Stepper, replay, sweep, synthetic
from simspec.policies import fixed

TRACE = synthetic.iid(0.5, 2, 50, 4, confidence=True)


def _two(params, state, slot, features, u):
    return slot < 2, True


def _quiet(params, state, computed, drafted, accepted, features, cost):
    pass


def _writes_far(params, state, computed, drafted, accepted, features, cost):
    state[7] = 3.0


def _writes_later(params, state, computed, drafted, accepted, features, cost):
    state[0] += 1.0
    state[int(state[0])] = 1.0


def _reads_far(params, state, slot, features, u):
    return slot == 0 or features[slot - 1, 40] < 2.0, True


def _reads_params(params, state, slot, features, u):
    return slot < params[2], True


def _last(params, state, slot, features, u):
    return slot < params[-1], True


WRONG = {
    "state": (Policy("mine", _two, _writes_far, state0=(0.0,)), "observe"),
    "state, after rounds": (Policy("mine", _two, _writes_later, state0=(0.0,) * 9), "observe"),
    "features": (Policy("mine", _reads_far, _quiet, reads=("confidence",)), "draft_more"),
    "params": (Policy("mine", _reads_params, _quiet, params=(1.0,)), "draft_more"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_an_index_beyond_an_array_is_one_clear_error(kind):
    policy, function = WRONG[kind]
    cost = CostModel.from_ratio(0.1, 4)
    for use in (
        lambda: replay(TRACE, policy),
        lambda: sweep(TRACE, policy, progress=False),
        lambda: (
            Stepper(policy, 4, 0, cost, TRACE.meta.features).begin(0)
            or replay(TRACE, policy, 1, cost)
        ),
    ):
        with pytest.raises(
            PolicyError, match=f"^policy 'mine': {function} indexes beyond"
        ) as found:
            use()
        assert "\n" not in str(found.value)


def test_control_indices_inside_run_as_ever():
    assert replay(TRACE, Policy("mine", _two, _quiet)) == replay(TRACE, fixed(2))
    assert replay(TRACE, Policy("mine", _last, _quiet, (5.0, 2.0))) == replay(TRACE, fixed(2))


UNCHECKED = """
import numba, numpy as np
from simspec.policy.policy import compile_policy
more = lambda params, state, slot, features, u: (slot < 2, True)
def observe(params, state, computed, drafted, accepted, features, cost):
    state[7] = 3.0
state = np.zeros(16)
compile_policy("mine", more, observe)[1](state, state[:1], 1, 1, 1, np.zeros((1, 0)), 0.0)
print(state[7])
"""


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="numpy checks where numba is disabled")
def test_control_compiled_code_without_the_check_writes_there():
    done = subprocess.run([sys.executable, "-c", UNCHECKED], capture_output=True, text=True)
    assert done.stdout == "3.0\n", done.stderr
